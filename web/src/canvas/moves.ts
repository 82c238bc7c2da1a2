// Moving blocks, notes and frames: what a frame takes along, and the history step of a move.

import type { NodeChange, NodePositionChange } from "@xyflow/react";
import { doc, get } from "../app/store";
import { change } from "../page/actions";
import * as edit from "../page/edit";
import { insertPage, copyText, parsePage } from "../clipboard/clipboard";
import { select } from "../page/actions";
import { notesOf } from "../page/page";
import { frameContents, rendered } from "./layout";
import { noteId, noteNumber } from "./nodes";

let dragged = false; // by the mouse, not by arrow keys
let copying = false; // Alt is held: copies are put where the drag ends, and what was dragged stays

/** A drag by the mouse begins. */
export function beginDrag(withAlt: boolean): void {
  copying = withAlt && FEATURES.copyPaste;
}

/** Position changes, extended by the contents of moved frames. The page still has the positions from before the drag. */
export function withFrameContents(changes: NodeChange[]): NodeChange[] {
  const open = doc();
  const moved = changes.filter(isMove);
  if (!open || !moved.length) return changes;
  const frames = moved.filter((c) => notesOf(open.page)[noteNumber(c.id) ?? -1]?.size);
  if (!frames.length) return changes;
  const sizes = rendered.sizes();
  const found = new Set(moved.map((c) => c.id));
  const more: NodeChange[] = [];
  for (const c of frames) {
    const k = noteNumber(c.id)!;
    const [x, y] = notesOf(open.page)[k]!.at ?? [0, 0];
    const inside = frameContents(open.page, k, get().catalog, (id) => sizes.get(id), (i) => sizes.get(noteId(i)));
    for (const [id, at] of [...inside.blocks, ...inside.notes.map(([i, at]) => [noteId(i), at] as const)]) {
      if (found.has(id)) continue;
      found.add(id);
      more.push({ id, type: "position", position: { x: at[0] + c.position!.x - x, y: at[1] + c.position!.y - y }, dragging: c.dragging ?? false });
    }
  }
  return [...changes, ...more];
}

/** A move by mouse or keys. A position change without `dragging` belongs to a resize. */
function isMove(c: NodeChange): c is NodePositionChange {
  return c.type === "position" && c.dragging !== undefined && c.position !== undefined;
}

/** Record a finished drag as one history step, and consecutive arrow keys as one. */
export function recordMoves(changes: NodeChange[]): void {
  const moves = changes.filter(isMove);
  if (!moves.length) return;
  if (moves.some((c) => c.dragging)) {
    dragged = true;
    return;
  }
  const byHand = dragged;
  dragged = false;
  const places = new Map<string, edit.Place>();
  const notes = new Map<number, edit.Place>();
  for (const c of moves) {
    const k = noteNumber(c.id);
    if (k === null) places.set(c.id, [c.position!.x, c.position!.y]);
    else notes.set(k, [c.position!.x, c.position!.y]);
  }
  if (copying) {
    copying = false;
    duplicateTo(places, notes);
    return;
  }
  const framed = moves.some((c) => noteNumber(c.id) !== null && notesOf(doc()!.page)[noteNumber(c.id)!]?.size);
  const what = framed ? "a frame" : places.size === 1 ? [...places.keys()][0] : places.size ? `${places.size} blocks` : notes.size === 1 ? "a note" : "notes";
  change(`move ${what}${byHand ? "" : " by keys"}`, (page) => moveAll(page, places, notes), !byHand);
}

/** Put copies of blocks and notes at positions. */
function duplicateTo(places: ReadonlyMap<string, edit.Place>, notes: ReadonlyMap<number, edit.Place>): void {
  const open = doc()!;
  const copied = parsePage(copyText(open.page, new Set(places.keys()), new Set(notes.keys())));
  const ends = [...places.values(), ...notes.values()];
  if (!copied || !ends.length) return;
  const made = insertPage(open.page, copied, [Math.min(...ends.map(([x]) => x)), Math.min(...ends.map(([, y]) => y))]);
  change("duplicate by dragging", () => made.page);
  select(made.ids, made.notes);
}

function moveAll(page: Parameters<typeof edit.move>[0], places: ReadonlyMap<string, edit.Place>, notes: ReadonlyMap<number, edit.Place>) {
  const moved = edit.move(page, places);
  let next = moved.blocks.every((block, i) => block === page.blocks[i]) ? page : moved;
  for (const [k, at] of notes) {
    const was = next.notes?.[k]?.at;
    if (!was || was[0] !== at[0] || was[1] !== at[1]) next = edit.changeNote(next, k, { at });
  }
  return next;
}
