// Where blocks stand that a page has not placed: in columns along the wires, right of those that are placed.

import type { Page } from "../transport/protocol";
import type { Place } from "./edit";
import { endsAt, parseEnd } from "./page";

const COLUMN = 320;
const ROW = 150;

export function positionsOf(page: Page): Map<string, Place> {
  const places = new Map<string, Place>();
  for (const block of page.blocks) if (block.at) places.set(block.id, block.at);
  if (places.size === page.blocks.length) return places;
  const right = Math.max(-COLUMN, ...[...places.values()].map(([x]) => x)) + COLUMN;
  const depth = depths(page);
  const rows = new Map<number, number>();
  for (const block of page.blocks) {
    if (places.has(block.id)) continue;
    const column = depth.get(block.id) ?? 0;
    const row = rows.get(column) ?? 0;
    rows.set(column, row + 1);
    places.set(block.id, [right + 20 + column * COLUMN, 20 + row * ROW]);
  }
  return places;
}

/** A page whose blocks all have the places they were shown at before: else those without one would move along. */
export function settle(page: Page, before: Page): Page {
  if (page.blocks.every((block) => block.at)) return page;
  const places = positionsOf(before);
  const blocks = page.blocks.map((block) => {
    const at = block.at ?? places.get(block.id);
    return at === block.at || !at ? block : { ...block, at };
  });
  return { ...page, blocks };
}

/** How many wires lie before each block; what stands in a circle counts from where it is first met. */
function depths(page: Page): Map<string, number> {
  const blocks = new Map(page.blocks.map((block) => [block.id, block]));
  const found = new Map<string, number>();
  const stack: [string, boolean][] = page.blocks.map((block) => [block.id, false]);
  const entered = new Set<string>();
  while (stack.length) {
    const [id, done] = stack.pop()!;
    const block = blocks.get(id);
    if (!block || found.has(id)) continue;
    const sources = Object.keys(block.in ?? {}).flatMap((pin) => endsAt(block, pin).map((end) => parseEnd(end).block));
    if (!done && !entered.has(id)) {
      entered.add(id);
      stack.push([id, true]);
      for (const source of sources) if (!found.has(source)) stack.push([source, false]);
    } else {
      found.set(id, Math.max(-1, ...sources.map((source) => found.get(source) ?? -1)) + 1);
    }
  }
  return found;
}
