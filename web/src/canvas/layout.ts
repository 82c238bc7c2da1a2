// Where blocks are: sizes, positions, automatic layout, alignment, frames.

import type { Place } from "../page/edit";
import { endsAt, notesOf, parseEnd, wiresOf } from "../page/page";
import type { Catalog } from "../palette/catalog";
import type { Block, Info, Note, OpRecord, Page } from "../transport/protocol";
import { MOST_ROWS } from "../values/mini";

import dagre from "@dagrejs/dagre";

export const GRID = 10;
export const WIDTH = 240;
const HEAD = 36; // the header and the space below it
const ROW = 22;
const FOOT = 8;
const RESULT = 64; // a result with its name and a picture
const RESULTS_FOOT = 28; // the cost of a block, and space around its results
export const LABEL = 18; // the block's name above it

export interface Size {
  width: number;
  height: number;
}

/** Sizes of rendered blocks, and the height they will have with their results; the canvas sets both. */
export const rendered = { sizes: (): ReadonlyMap<string, Size> => new Map(), withResults: (_block: string): number => 0 };

/** The height that the results of a block will have, by the values at its outputs: a small table has a line for each row. */
export function roomForResults(outputs: readonly Pick<Info, "shape">[]): number {
  const rows = outputs.map(({ shape }) => (shape?.length === 2 ? (shape[0] ?? MOST_ROWS) : 0));
  return rows.reduce((sum, n) => sum + RESULT + (n <= MOST_ROWS ? Math.max(0, 17 * n - 40) : 0), RESULTS_FOOT);
}

/** The approximate size of a block with its results; the style sheet has the same numbers. */
export function sizeOf(record: OpRecord | undefined): Size {
  const rows = record ? Math.max(record.inputs.length, record.outputs.length, 1) : 1;
  return { width: WIDTH, height: HEAD + ROW * rows + FOOT + roomForResults(record?.outputs.map(() => ({ shape: null })) ?? []) };
}

function sizeOfBlock(block: Block, catalog: Catalog, sizes: ReadonlyMap<string, Size>): Size {
  return sizes.get(block.id) ?? sizeOf(catalog.find(block.op));
}

function reservedSize(block: Block, catalog: Catalog, sizes: ReadonlyMap<string, Size>): Size {
  // Reserve space for results, which may come later.
  const about = sizeOf(catalog.find(block.op));
  const measured = sizes.get(block.id);
  return measured ? { width: Math.max(measured.width, about.width), height: Math.max(measured.height, about.height, rendered.withResults(block.id)) } : about;
}

/** A pin's vertical offset from its block's top. */
export function pinOffset(pins: readonly { name: string }[] | undefined, name: string): number {
  const k = pins?.findIndex((pin) => pin.name === name) ?? 0;
  return HEAD + ROW * (Math.max(k, 0) + 0.5);
}

export function snap(at: Place): Place {
  return [Math.round(at[0] / GRID) * GRID, Math.round(at[1] / GRID) * GRID];
}

/** Positions in columns along the wires. Blocks of one frame stay together. */
export function autoLayout(page: Page, catalog: Catalog, only?: ReadonlySet<string>): Map<string, Place> {
  const graph = new dagre.graphlib.Graph({ compound: true });
  graph.setGraph({ rankdir: "LR", nodesep: 30, ranksep: 100, marginx: 20, marginy: 20 });
  graph.setDefaultEdgeLabel(() => ({}));
  const chosen = page.blocks.filter((block) => !only || only.has(block.id));
  const sizes = rendered.sizes();
  for (const block of chosen) {
    const { width, height } = reservedSize(block, catalog, sizes);
    graph.setNode(block.id, { width, height: height + LABEL });
  }
  for (const { note, blocks } of framesOf(page, catalog)) {
    const inside = blocks.filter((id) => graph.hasNode(id) && graph.parent(id) === undefined);
    if (!inside.length) continue;
    graph.setNode(`${FRAME} ${note}`, {});
    for (const id of inside) graph.setParent(id, `${FRAME} ${note}`);
  }
  for (const wire of wiresOf(page)) {
    if (graph.hasNode(wire.from.block) && graph.hasNode(wire.to)) graph.setEdge(wire.from.block, wire.to);
  }
  dagre.layout(graph);
  const corner = only ? cornerOf(fixPositions(page, page).blocks.filter((block) => only.has(block.id))) : ([0, 0] as Place);
  const places = new Map<string, Place>();
  for (const block of chosen) {
    const node = graph.node(block.id) as { x: number; y: number; width: number; height: number };
    places.set(block.id, snap([corner[0] + node.x - node.width / 2, corner[1] + node.y - node.height / 2 + LABEL]));
  }
  return places;
}

const FRAME = "frame"; // ids of blocks contain no space, so `frame 0` is not one

/** The frames of a page with the blocks inside them. */
function framesOf(page: Page, catalog: Catalog): { note: number; blocks: string[] }[] {
  const sizes = rendered.sizes();
  return notesOf(page).flatMap((note, k) => {
    if (!note.size) return [];
    const { blocks } = frameContents(page, k, catalog, (id) => sizes.get(id), () => undefined);
    return [{ note: k, blocks: blocks.map(([id]) => id) }];
  });
}

export interface Box extends Size {
  x: number;
  y: number;
}

const NEAR = 160; // pixels; a note this close to a block belongs to it
const GAP = 14;
const MARGIN = 10; // of a card

/** A page with its blocks, or some of them, laid out. Notes follow the block they are next to, frames their blocks, and
 *  nothing lies on a block. */
export function arrange(page: Page, catalog: Catalog, only?: ReadonlySet<string>): Page {
  if (!page.blocks.length) return page;
  const sizes = rendered.sizes();
  const boxOf = (block: Block, at: Place): Box => ({ x: at[0], y: at[1] - LABEL, ...addLabel(reservedSize(block, catalog, sizes)) });
  const before = positionsOf(page);
  const places = autoLayout(page, catalog, only);
  if (only) moveBelowOthers(page, places, only, boxOf, before);
  const blocks = page.blocks.map((block) => {
    const at = places.get(block.id);
    return at && (block.at?.[0] !== at[0] || block.at[1] !== at[1]) ? { ...block, at } : block;
  });
  const moved: Page = { ...page, blocks };
  if (!page.notes?.length) return moved;
  const after = positionsOf(moved);
  const old = page.blocks.map((block) => ({ id: block.id, box: boxOf(block, before.get(block.id)!) }));
  const taken = moved.blocks.map((block) => boxOf(block, after.get(block.id)!));
  const frames = new Map(framesOf(page, catalog).map(({ note, blocks: inside }) => [note, inside]));
  const notes = page.notes.map((note, k): Note => {
    const inside = frames.get(k)?.filter((id) => places.has(id)) ?? [];
    if (note.size && inside.length) {
      const { at, size } = frameAround(moved.blocks.filter((block) => frames.get(k)!.includes(block.id)), catalog, note.text);
      return { ...note, at: at!, size: size! };
    }
    const own: Box = { x: note.at?.[0] ?? 0, y: note.at?.[1] ?? 0, width: note.size?.[0] ?? sizes.get(`note ${k}`)?.width ?? NOTE_SIZE.width, height: note.size?.[1] ?? sizes.get(`note ${k}`)?.height ?? NOTE_SIZE.height };
    const nearest = old.reduce((best, one) => (distance(one.box, own) < distance(best.box, own) ? one : best));
    const near = distance(nearest.box, own) <= NEAR;
    if (!near && only) return note;
    const [fromX, fromY] = near ? before.get(nearest.id)! : cornerOf(page.blocks.map((block) => ({ ...block, at: before.get(block.id)! })));
    const [toX, toY] = near ? after.get(nearest.id)! : cornerOf(moved.blocks.map((block) => ({ ...block, at: after.get(block.id)! })));
    const place: Box = { ...own, x: own.x + toX - fromX, y: own.y + toY - fromY };
    const up = own.y < (near ? nearest.box.y + nearest.box.height / 2 : fromY);
    for (let tries = 0; tries < 200; tries++) {
      const hit = taken.find((box) => overlaps(box, place));
      if (!hit) break;
      place.y = up ? hit.y - place.height - GAP : hit.y + hit.height + GAP;
    }
    taken.push(place);
    return { ...note, at: [place.x, place.y] };
  });
  return { ...moved, notes };
}

/** The boxes of the rendered blocks, with their names, and notes, by the ids of their nodes; frames have none. */
function renderedBoxes(page: Page, sizes: ReadonlyMap<string, Size>): Map<string, Box> {
  const places = positionsOf(page);
  const boxes = new Map<string, Box>();
  for (const { id } of page.blocks) if (sizes.has(id)) boxes.set(id, { x: places.get(id)![0], y: places.get(id)![1] - LABEL, ...addLabel(sizes.get(id)!) });
  notesOf(page).forEach((note, k) => {
    const size = sizes.get(`note ${k}`);
    if (size && !note.size) boxes.set(`note ${k}`, { x: note.at?.[0] ?? 0, y: note.at?.[1] ?? 0, ...size });
  });
  return boxes;
}

/** How far to the right of its original a copy covers nothing. `ids` are those of nodes. */
export function shiftOfCopy(page: Page, ids: ReadonlySet<string>): number {
  const boxes = [...renderedBoxes(page, rendered.sizes())];
  const original = boxes.filter(([id]) => ids.has(id)).map(([, box]) => box);
  if (!original.length) return 2 * GRID;
  const width = Math.max(...original.map((box) => box.x + box.width)) - Math.min(...original.map((box) => box.x));
  const step = Math.ceil(width / GRID + 2) * GRID;
  let by = step;
  while (original.some((one) => boxes.some(([, other]) => overlaps({ ...one, x: one.x + by }, other)))) by += step;
  return by;
}

/** Move blocks and notes down that others now cover because their results made them higher. `grown` is by how much. */
export function makeSpace(page: Page, sizes: ReadonlyMap<string, Size>, grown: ReadonlyMap<string, number>): Page {
  const places = positionsOf(page);
  const boxes = renderedBoxes(page, sizes);
  const down = new Map<string, number>();
  // From top to bottom: what moves down pushes what is below it, as a block does that grows.
  for (const [id, box] of [...boxes].sort(([, a], [, b]) => a.y - b.y)) {
    const moved = down.get(id) ?? 0;
    const before = box.y + box.height - (grown.get(id) ?? 0);
    const after = box.y + box.height + moved;
    if (after === before) continue;
    for (const [other, below] of boxes) {
      if (other === id || below.y < before || below.y + (down.get(other) ?? 0) >= after || box.x >= below.x + below.width || below.x >= box.x + box.width) continue;
      down.set(other, Math.ceil((after + GAP - below.y) / GRID) * GRID);
    }
  }
  if (!down.size) return page;
  const lower = (at: Place, id: string): Place => (down.has(id) ? [at[0], at[1] + down.get(id)!] : at);
  const blocks = page.blocks.map((block) => (down.has(block.id) ? { ...block, at: lower(places.get(block.id)!, block.id) } : block));
  const notes = page.notes?.map((note, k): Note => {
    const at = note.at ?? [0, 0];
    if (!note.size) return down.has(`note ${k}`) ? { ...note, at: lower(at, `note ${k}`) } : note;
    // A frame keeps what was inside.
    const [right, bottom] = [at[0] + note.size[0], at[1] + note.size[1]];
    const inside = [...boxes].filter(([id, box]) => box.x >= at[0] && box.y >= at[1] && box.x + box.width <= right && box.y + box.height - (grown.get(id) ?? 0) <= bottom);
    const lowest = Math.max(bottom, ...inside.map(([id, box]) => box.y + box.height + (down.get(id) ?? 0) + GAP));
    return lowest > bottom ? { ...note, size: [note.size[0], lowest - at[1]] } : note;
  });
  return { ...page, blocks, ...(notes && { notes }) };
}

function addLabel({ width, height }: Size): Size {
  return { width, height: height + LABEL };
}

/** Move a part that was laid out below the blocks that were not, where it would lie on them. */
function moveBelowOthers(page: Page, places: Map<string, Place>, only: ReadonlySet<string>, boxOf: (block: Block, at: Place) => Box, before: ReadonlyMap<string, Place>): void {
  const others = page.blocks.filter((block) => !only.has(block.id)).map((block) => boxOf(block, before.get(block.id)!));
  const chosen = page.blocks.filter((block) => only.has(block.id));
  for (let tries = 0; tries < 200; tries++) {
    const boxes = chosen.map((block) => boxOf(block, places.get(block.id)!));
    const hits = boxes.flatMap((box) => others.filter((other) => overlaps(box, other)).map((other) => other.y + other.height + GAP - box.y));
    if (!hits.length) return;
    const by = Math.ceil(Math.max(...hits) / GRID) * GRID;
    for (const [id, [x, y]] of places) places.set(id, [x, y + by]);
  }
}

function overlaps(a: Box, b: Box): boolean {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

/** The distance of two boxes; 0 if they overlap. */
function distance(a: Box, b: Box): number {
  const across = Math.max(0, a.x - b.x - b.width, b.x - a.x - a.width);
  const down = Math.max(0, a.y - b.y - b.height, b.y - a.y - a.height);
  return Math.hypot(across, down);
}

/** Where a card about a block is put: beside it or in a corner, inside `free`, where it covers the least of the others.
 *  Null if it would cover the block everywhere. */
export function placeCard(free: Box, card: Size, block: Box, others: readonly Box[]): Place | null {
  const [right, bottom] = [free.x + free.width - card.width - MARGIN, free.y + free.height - card.height - MARGIN];
  const [left, top] = [free.x + MARGIN, free.y + MARGIN];
  if (right < left || bottom < top) return null;
  const [x, y] = [block.x + (block.width - card.width) / 2, block.y];
  const wanted: Place[] = [[x, block.y + block.height + MARGIN], [x, block.y - LABEL - card.height - MARGIN], [block.x + block.width + MARGIN, y], [block.x - card.width - MARGIN, y], [left, top], [right, top], [left, bottom], [right, bottom]];
  let [found, least]: [Place | null, number] = [null, Infinity];
  for (const [a, b] of wanted) {
    const place: Box = { x: Math.min(Math.max(a, left), right), y: Math.min(Math.max(b, top), bottom), ...card };
    if (overlaps(place, block)) continue;
    const covered = others.reduce((sum, other) => sum + sharedArea(place, other), 0);
    if (covered < least) [found, least] = [[place.x, place.y], covered];
  }
  return found;
}

function sharedArea(a: Box, b: Box): number {
  const shared = (from: number, size: number, other: number, otherSize: number) => Math.max(0, Math.min(from + size, other + otherSize) - Math.max(from, other));
  return shared(a.x, a.width, b.x, b.width) * shared(a.y, a.height, b.y, b.height);
}

function cornerOf(blocks: Block[]): Place {
  return [Math.min(...blocks.map((b) => b.at?.[0] ?? 0)), Math.min(...blocks.map((b) => b.at?.[1] ?? 0))];
}

export type Alignment = "left" | "right" | "top" | "bottom" | "middle" | "centre" | "across" | "down";

/** Align blocks, or distribute them evenly across or down. */
export function align(blocks: Block[], catalog: Catalog, how: Alignment): Map<string, Place> {
  const sizes = rendered.sizes();
  // By visible sizes: edges aligned to space reserved for results would look wrong.
  const boxes = blocks.map((block) => ({ id: block.id, x: block.at?.[0] ?? 0, y: block.at?.[1] ?? 0, ...(sizes.get(block.id) ?? sizeOf(catalog.find(block.op))) }));
  const left = Math.min(...boxes.map((b) => b.x));
  const top = Math.min(...boxes.map((b) => b.y));
  const right = Math.max(...boxes.map((b) => b.x + b.width));
  const bottom = Math.max(...boxes.map((b) => b.y + b.height));
  const places = new Map<string, Place>();
  if (how === "across" || how === "down") {
    const along = how === "across" ? "x" : "y";
    const extent = how === "across" ? "width" : "height";
    const sorted = [...boxes].sort((a, b) => a[along] - b[along]);
    const space = (how === "across" ? right - left : bottom - top) - sorted.reduce((sum, b) => sum + b[extent], 0);
    const gap = sorted.length > 1 ? space / (sorted.length - 1) : 0;
    let next = how === "across" ? left : top;
    for (const box of sorted) {
      places.set(box.id, how === "across" ? [next, box.y] : [box.x, next]);
      next += box[extent] + gap;
    }
    return places;
  }
  for (const box of boxes) {
    const x = { left, right: right - box.width, centre: (left + right - box.width) / 2 }[how as "left"] ?? box.x;
    const y = { top, bottom: bottom - box.height, middle: (top + bottom - box.height) / 2 }[how as "top"] ?? box.y;
    places.set(box.id, [x, y]);
  }
  return places;
}

/** The bounding box of everything on a page. */
export function boundsOf(page: Page, catalog: Catalog): Size & { x: number; y: number } {
  const places = positionsOf(page);
  const boxes = page.blocks.map((block) => ({ at: places.get(block.id)!, ...sizeOf(catalog.find(block.op)) }));
  for (const note of page.notes ?? []) boxes.push({ at: note.at ?? [0, 0], width: note.size?.[0] ?? 120, height: note.size?.[1] ?? 30 });
  if (!boxes.length) return { x: 0, y: 0, width: 100, height: 100 };
  const x = Math.min(...boxes.map((box) => box.at[0]));
  const y = Math.min(...boxes.map((box) => box.at[1])) - LABEL;
  const right = Math.max(...boxes.map((box) => box.at[0] + box.width));
  const bottom = Math.max(...boxes.map((box) => box.at[1] + box.height));
  return { x, y, width: right - x, height: bottom - y };
}

/** A frame that contains all of these blocks. */
export function frameAround(blocks: Block[], catalog: Catalog, text: string): Note {
  const margin = 24;
  const sizes = rendered.sizes();
  const boxes = blocks.map((block) => ({ x: block.at?.[0] ?? 0, y: block.at?.[1] ?? 0, ...sizeOfBlock(block, catalog, sizes) }));
  const left = Math.min(...boxes.map((b) => b.x)) - margin;
  const top = Math.min(...boxes.map((b) => b.y)) - margin - LABEL - 30; // its title
  const right = Math.max(...boxes.map((b) => b.x + b.width)) + margin;
  const bottom = Math.max(...boxes.map((b) => b.y + b.height)) + margin;
  return { text, at: [left, top], size: [right - left, bottom - top] };
}

/** A free position near the wanted one. */
export function freePlace(page: Page, catalog: Catalog, wanted: Place, record: OpRecord | undefined): Place {
  const { width, height } = sizeOf(record);
  const sizes = rendered.sizes();
  const places = positionsOf(page);
  const boxes = page.blocks.map((block) => {
    const [left, top] = places.get(block.id)!;
    return { x: left, y: top, ...reservedSize(block, catalog, sizes) };
  });
  let [x, y] = snap(wanted);
  for (let tries = 0; tries < 500; tries++) {
    const hit = boxes.find((b) => x < b.x + b.width + 20 && b.x < x + width + 20 && y < b.y + b.height + 20 + LABEL && b.y < y + height + 20 + LABEL);
    if (!hit) break;
    y = Math.ceil((hit.y + hit.height + 30 + LABEL) / GRID) * GRID;
    if (tries % 10 === 9) {
      x += width + 60;
      y = snap(wanted)[1];
    }
  }
  return [x, y];
}

const UNPLACED_COLUMN = 430;
const UNPLACED_ROW = 240;

export function positionsOf(page: Page): Map<string, Place> {
  const places = new Map<string, Place>();
  for (const block of page.blocks) if (block.at) places.set(block.id, block.at);
  if (places.size === page.blocks.length) return places;
  const right = Math.max(-UNPLACED_COLUMN, ...[...places.values()].map(([x]) => x)) + UNPLACED_COLUMN;
  const depth = depths(page);
  const rows = new Map<number, number>();
  for (const block of page.blocks) {
    if (places.has(block.id)) continue;
    const column = depth.get(block.id) ?? 0;
    const row = rows.get(column) ?? 0;
    rows.set(column, row + 1);
    places.set(block.id, [right + 20 + column * UNPLACED_COLUMN, 20 + row * UNPLACED_ROW]);
  }
  return places;
}

/** Give every block the position it was shown at before: otherwise blocks without one would move too. */
export function fixPositions(page: Page, before: Page): Page {
  if (page.blocks.every((block) => block.at)) return page;
  const places = positionsOf(before);
  const blocks = page.blocks.map((block) => {
    const at = block.at ?? places.get(block.id);
    return at === block.at || !at ? block : { ...block, at };
  });
  return { ...page, blocks };
}

/** The depth of each block along the wires; in a cycle it counts from the block that is visited first. */
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

export interface FrameContents {
  blocks: [string, Place][];
  notes: [number, Place][];
}

const NOTE_SIZE: Size = { width: 120, height: 30 }; // until it is rendered

/** The blocks and notes inside the k-th note, with positions; empty if that is not a frame. Sizes are the rendered ones. */
export function frameContents(page: Page, k: number, catalog: Catalog, blockSize: (id: string) => Size | undefined, noteSize: (k: number) => Size | undefined): FrameContents {
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
    .map((note, i) => [i, note.at ?? ([0, 0] as Place), note.size ? { width: note.size[0], height: note.size[1] } : (noteSize(i) ?? NOTE_SIZE)] as const)
    .filter(([i, at, size]) => i !== k && holds(at, size))
    .map(([i, at]): [number, Place] => [i, at]);
  return { blocks, notes };
}
