// Blocks on their way to another place: as JSON that is itself a page, so that it can be pasted anywhere.

import type { Block, Note, Page } from "../transport/protocol";
import type { Place } from "./edit";
import { addBlocks, addNote } from "./edit";
import { endText, endsAt, freeId, idsOf, notesOf, parseEnd, wiresOf } from "./page";
import { positionsOf } from "./places";

/** The chosen blocks and notes as the text of a page; wires from other blocks are left behind. */
export function copyText(page: Page, ids: ReadonlySet<string>, notes: ReadonlySet<number>): string {
  const places = positionsOf(page);
  const blocks = page.blocks
    .filter((block) => ids.has(block.id))
    .map((block) => {
      const kept: Record<string, string | string[]> = {};
      for (const pin of Object.keys(block.in ?? {})) {
        const ends = endsAt(block, pin).filter((end) => ids.has(parseEnd(end).block));
        if (ends.length) kept[pin] = ends.length === 1 ? ends[0]! : ends;
      }
      return rewired({ ...block, at: places.get(block.id)! }, kept);
    });
  const chosen = notesOf(page).filter((_, k) => notes.has(k));
  const made: Page = { format: "rowgrad-page", version: 1, name: page.name, blocks, ...(chosen.length ? { notes: chosen } : {}) };
  return JSON.stringify(made, null, 1);
}

/** A block with these wires and no others; what hid a wire goes with it. */
function rewired(block: Block, wires: Record<string, string | string[]>): Block {
  const { in: _, hidden, ...rest } = block;
  const still = hidden?.filter((pin) => pin in wires) ?? [];
  return { ...rest, ...(Object.keys(wires).length ? { in: wires } : {}), ...(still.length ? { hidden: still } : {}) };
}

/** What such a text holds, or null where it is none. A clipboard may hold anything. */
export function readText(text: string): Page | null {
  try {
    const found = JSON.parse(text) as Page;
    return found?.format === "rowgrad-page" && isWhole(found) ? found : null;
  } catch {
    return null;
  }
}

/** Whether it has blocks under names of their own, and its wires can be read. */
function isWhole(page: Page): boolean {
  wiresOf(page); // throws where one cannot be
  const named = page.blocks.every((block) => typeof block.id === "string" && block.id !== "" && typeof block.op === "string");
  const placed = [...page.blocks, ...notesOf(page)].every(({ at }) => at === undefined || (Array.isArray(at) && at.length === 2 && at.every(Number.isFinite)));
  return placed && page.blocks.length + notesOf(page).length > 0 && named && idsOf(page).size === page.blocks.length && notesOf(page).every((note) => typeof note.text === "string");
}

/** The page with the pasted blocks, under free names, their upper left corner at a place; and which are new. */
export function paste(page: Page, pasted: Page, at: Place): { page: Page; ids: Set<string>; notes: Set<number> } {
  const taken = idsOf(page);
  const names = new Map<string, string>();
  for (const block of pasted.blocks) {
    const id = freeId(taken, block.id);
    taken.add(id);
    names.set(block.id, id);
  }
  const places = positionsOf(pasted);
  const corners = [...places.values(), ...notesOf(pasted).map((n) => n.at ?? [0, 0])];
  const dx = at[0] - Math.min(...corners.map((c) => c[0]!));
  const dy = at[1] - Math.min(...corners.map((c) => c[1]!));
  const blocks = pasted.blocks.map((block) => {
    const wires: Record<string, string | string[]> = {};
    for (const pin of Object.keys(block.in ?? {})) {
      const ends = endsAt(block, pin)
        .map(parseEnd)
        .filter((end) => names.has(end.block))
        .map((end) => endText({ ...end, block: names.get(end.block)! }));
      if (ends.length) wires[pin] = ends.length === 1 ? ends[0]! : ends;
    }
    const [x, y] = places.get(block.id)!;
    return rewired({ ...block, id: names.get(block.id)!, at: [x + dx, y + dy] }, wires);
  });
  let next = addBlocks(page, blocks);
  const notes = new Set<number>();
  for (const note of notesOf(pasted) as Note[]) {
    notes.add(notesOf(next).length);
    const [x, y] = note.at ?? [0, 0];
    next = addNote(next, { ...note, at: [x + dx, y + dy] });
  }
  return { page: next, ids: new Set(names.values()), notes };
}
