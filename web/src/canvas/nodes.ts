// A page as React Flow's nodes and edges. Unchanged nodes stay the same objects, so they are not rendered again.

import type { Edge, Node } from "@xyflow/react";
import type { Role } from "../blocks/pins";
import { inputOf, outputOf, roleOf } from "../blocks/pins";
import { wireId } from "../page/actions";
import type { End, Wire } from "../page/page";
import { entryText, notesOf, parseEnd, pinPath, wiresOf } from "../page/page";
import type { Catalog } from "../palette/catalog";
import type { Page, Pin } from "../transport/protocol";
import { pinOffset, positionsOf, sizeOf } from "./layout";

const NOTE = "note "; // block ids contain no space

export function noteId(k: number): string {
  return NOTE + k;
}

export function noteNumber(id: string): number | null {
  return id.startsWith(NOTE) ? Number(id.slice(NOTE.length)) : null;
}

export function inHandle(pin: string): string {
  return `in:${pin}`;
}

export function outHandle(pin: string, index: number | null = null): string {
  return `out:${entryText(pin, index)}`;
}

export function endOfHandle(block: string, handle: string): End {
  const end = parseEnd(`x.${handle.slice(handle.indexOf(":") + 1)}`);
  return { block, pin: end.pin, index: end.index };
}

export function nodesOf(page: Page, catalog: Catalog, chosen: ReadonlySet<string>, notes: ReadonlySet<number>, before: Node[]): Node[] {
  const old = new Map(before.map((node) => [node.id, node]));
  const places = positionsOf(page);
  const blocks = page.blocks.map((block) => {
    const [x, y] = places.get(block.id)!;
    // Initial sizes, so that only visible blocks are rendered at all.
    const { width: initialWidth, height: initialHeight } = sizeOf(catalog.find(block.op));
    return reuseNode(old.get(block.id), {
      id: block.id,
      type: "block",
      position: { x, y },
      data: { op: block.op },
      initialWidth,
      initialHeight,
      selected: chosen.has(block.id),
      ariaLabel: `Block ${block.id}, ${block.op}`,
    });
  });
  const frames = notesOf(page).map((note, k) => {
    const [x, y] = note.at ?? [0, 0];
    const size = note.size ? { width: note.size[0], height: note.size[1] } : {};
    return reuseNode(old.get(noteId(k)), {
      id: noteId(k),
      type: "note",
      position: { x, y },
      data: { text: note.text, framed: Boolean(note.size), ...size },
      selected: notes.has(k),
      // Selection raises a node by 1000; a frame must stay below its blocks, or they could not be clicked.
      ...(note.size ? { zIndex: notes.has(k) ? -1001 : -1, ...size } : { zIndex: 0 }),
      ariaLabel: `${note.size ? "Frame" : "Note"}: ${note.text}`,
    });
  });
  return [...frames, ...blocks];
}

function reuseNode(old: Node | undefined, made: Node): Node {
  if (!old) return made;
  if (old.dragging) made = { ...made, position: old.position }; // being dragged: its position is recorded when it is dropped
  const same =
    old.position.x === made.position.x &&
    old.position.y === made.position.y &&
    Boolean(old.selected) === Boolean(made.selected) &&
    old.width === made.width &&
    old.height === made.height &&
    old.zIndex === made.zIndex &&
    sameData(old.data, made.data);
  return same ? old : { ...old, ...made };
}

function sameData(a: Record<string, unknown>, b: Record<string, unknown>): boolean {
  return Object.keys(b).every((key) => a[key] === b[key]);
}

export function edgesOf(page: Page, catalog: Catalog, chosen: ReadonlySet<string>): Edge[] {
  const ops = new Map(page.blocks.map((block) => [block.id, block.op]));
  const wires = wiresOf(page);
  const lanes = lanesOf(page, wires, catalog);
  return wires.map((wire, k) => {
    const id = wireId(wire.to, wire.pin, wire.place);
    const source = catalog.find(ops.get(wire.from.block) ?? "");
    const role = roleOfWire(outputOf(source, wire.from.pin), inputOf(catalog.find(ops.get(wire.to) ?? ""), wire.pin));
    return {
      id,
      type: "wire",
      source: wire.from.block,
      sourceHandle: outHandle(wire.from.pin, wire.from.index),
      target: wire.to,
      targetHandle: inHandle(wire.pin),
      selected: chosen.has(id),
      data: { from: wire.from, hidden: wire.hidden, role, lane: lanes[k]! },
      ariaLabel: `Wire from ${pinPath(wire.from.block, wire.from.pin)} to ${pinPath(wire.to, wire.pin)}`,
    };
  });
}

/** What a wire carries: ids and sizes are made as plain values, so the pin at the end says that they are. */
function roleOfWire(from: Pin | undefined, to: Pin | undefined): Role {
  const begins = from ? roleOf(from) : "any";
  const ends = to ? roleOf(to) : "any";
  return (begins === "values" || begins === "any") && (ends === "ids" || ends === "size" || ends === "values") ? ends : begins;
}

const COLUMN = 80; // blocks whose left edges are this close share their lanes
const MOST_LANES = 12;

/** A lane for the vertical part of every wire, so that wires into the same column run side by side. Wires that go down
 *  take lanes from the outside in as their targets are higher, wires that go up the other way round: then wires of one
 *  kind do not cross. A wire that goes straight ahead needs no lane, nor does one from the same pin as its neighbour. */
export function lanesOf(page: Page, wires: readonly Wire[], catalog: Catalog): number[] {
  const places = positionsOf(page);
  const records = new Map(page.blocks.map((block) => [block.id, catalog.find(block.op)]));
  const columns = new Map<number, { k: number; from: string; down: boolean; y: number }[]>();
  wires.forEach((wire, k) => {
    const [source, target] = [places.get(wire.from.block), places.get(wire.to)];
    if (!source || !target) return;
    const begin = source[1] + pinOffset(records.get(wire.from.block)?.outputs, wire.from.pin);
    const end = target[1] + pinOffset(records.get(wire.to)?.inputs, wire.pin);
    if (Math.abs(begin - end) < 2) return;
    const column = Math.round(target[0] / COLUMN);
    const found = columns.get(column) ?? [];
    found.push({ k, from: `${pinPath(wire.from.block, wire.from.pin)} ${wire.from.index}`, down: begin < end, y: end });
    columns.set(column, found);
  });
  const lanes = wires.map(() => 0);
  for (const found of columns.values()) {
    found.sort((a, b) => Number(b.down) - Number(a.down) || (a.down ? a.y - b.y : b.y - a.y));
    const ofPin = new Map<string, number>();
    let next = 0;
    for (const { k, from, down } of found) {
      const key = `${from} ${down}`;
      const lane = ofPin.get(key) ?? next++ % MOST_LANES;
      ofPin.set(key, lane);
      lanes[k] = lane;
    }
  }
  return lanes;
}
