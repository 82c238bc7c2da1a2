// What a frame takes along when it is moved: the blocks and notes that lie wholly inside it.

import type { Page } from "../transport/protocol";
import type { Size } from "./arrange";
import { sizeOf } from "./arrange";
import type { Catalog } from "./catalog";
import type { Place } from "./edit";
import { notesOf } from "./page";
import { positionsOf } from "./places";

export interface Inside {
  blocks: [string, Place][];
  notes: [number, Place][];
}

const NOTE: Size = { width: 120, height: 30 }; // until it has been drawn

/** What lies inside the k-th note, with its places; nothing where that is no frame. Sizes are those drawn, by block or number. */
export function insideFrame(page: Page, k: number, catalog: Catalog, blockSize: (id: string) => Size | undefined, noteSize: (k: number) => Size | undefined): Inside {
  const frame = notesOf(page)[k];
  if (!frame?.size) return { blocks: [], notes: [] };
  const [left, top] = frame.at ?? [0, 0];
  const [width, height] = frame.size;
  const holds = ([x, y]: Place, size: Size) => x >= left && y >= top && x + size.width <= left + width && y + size.height <= top + height;
  const places = positionsOf(page);
  const blocks = page.blocks
    .map((block) => [block.id, places.get(block.id)!, blockSize(block.id) ?? sizeOf(catalog.find(block.op))] as const)
    .filter(([, at, size]) => holds(at, size))
    .map(([id, at]): [string, Place] => [id, at]);
  const notes = notesOf(page)
    .map((note, i) => [i, note.at ?? ([0, 0] as Place), note.size ? { width: note.size[0], height: note.size[1] } : (noteSize(i) ?? NOTE)] as const)
    .filter(([i, at, size]) => i !== k && holds(at, size))
    .map(([i, at]): [number, Place] => [i, at]);
  return { blocks, notes };
}
