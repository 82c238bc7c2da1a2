// A page as React Flow's nodes and edges. Unchanged nodes stay the same objects, so they are not rendered again.

import type { Edge, Node } from "@xyflow/react";
import { outputOf, roleOf } from "../blocks/pins";
import { wireId } from "../page/actions";
import type { End } from "../page/page";
import { entryText, notesOf, parseEnd, pinPath, wiresOf } from "../page/page";
import type { Catalog } from "../palette/catalog";
import type { Page } from "../transport/protocol";
import { positionsOf, sizeOf } from "./layout";

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
  return wiresOf(page).map((wire) => {
    const id = wireId(wire.to, wire.pin, wire.place);
    const source = catalog.find(ops.get(wire.from.block) ?? "");
    const pin = outputOf(source, wire.from.pin);
    return {
      id,
      type: "wire",
      source: wire.from.block,
      sourceHandle: outHandle(wire.from.pin, wire.from.index),
      target: wire.to,
      targetHandle: inHandle(wire.pin),
      selected: chosen.has(id),
      data: { from: wire.from, hidden: wire.hidden, role: pin ? roleOf(pin) : "any" },
      ariaLabel: `Wire from ${pinPath(wire.from.block, wire.from.pin)} to ${pinPath(wire.to, wire.pin)}`,
    };
  });
}
