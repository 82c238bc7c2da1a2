// Copy, cut, paste and duplicate: blocks travel as JSON that is itself a page, so they can be pasted anywhere.

import { doc, front, get } from "../app/store";
import { positionsOf, shiftOfCopy } from "../canvas/layout";
import { noteId } from "../canvas/nodes";
import { notify } from "../messages/messages";
import { change, focusBlock, select, selectedBlocks, viewport } from "../page/actions";
import * as edit from "../page/edit";
import type { Place } from "../page/edit";
import { addNote, putBlocks } from "../page/edit";
import { blockOf, endText, endsAt, freeId, idsOf, notesOf, parseEnd, wiresOf } from "../page/page";
import type { Block, Note, Page } from "../transport/protocol";

/** The selected blocks and notes as the text of a page, without wires from other blocks. */
export function copyText(page: Page, ids: ReadonlySet<string>, notes: ReadonlySet<number>): string {
  const places = positionsOf(page);
  const blocks = page.blocks
    .filter((block) => ids.has(block.id))
    .map((block) => {
      const wires: Record<string, string | string[]> = {};
      for (const pin of Object.keys(block.in ?? {})) {
        const ends = endsAt(block, pin).filter((end) => ids.has(parseEnd(end).block));
        if (ends.length) wires[pin] = ends.length === 1 ? ends[0]! : ends;
      }
      return withWires({ ...block, at: places.get(block.id)! }, wires);
    });
  const chosen = notesOf(page).filter((_, k) => notes.has(k));
  const made: Page = { format: "rowgrad-page", version: 1, name: page.name, blocks, ...(chosen.length ? { notes: chosen } : {}) };
  return JSON.stringify(made, null, 1);
}

/** A block with exactly these wires; `hidden` keeps only pins that are still wired. */
function withWires(block: Block, wires: Record<string, string | string[]>): Block {
  const { in: _, hidden, ...rest } = block;
  const still = hidden?.filter((pin) => pin in wires) ?? [];
  return { ...rest, ...(Object.keys(wires).length ? { in: wires } : {}), ...(still.length ? { hidden: still } : {}) };
}

/** Parse a page from the clipboard; null if it is anything else. */
export function parsePage(text: string): Page | null {
  try {
    const found = JSON.parse(text) as Page;
    return found?.format === "rowgrad-page" && isWhole(found) ? found : null;
  } catch {
    return null;
  }
}

/** Whether block names are unique and wires and positions are valid. */
function isWhole(page: Page): boolean {
  wiresOf(page); // throws for an invalid wire
  const named = page.blocks.every((block) => typeof block.id === "string" && block.id !== "" && typeof block.op === "string");
  const placed = [...page.blocks, ...notesOf(page)].every(({ at }) => at === undefined || (Array.isArray(at) && at.length === 2 && at.every(Number.isFinite)));
  return placed && page.blocks.length + notesOf(page).length > 0 && named && idsOf(page).size === page.blocks.length && notesOf(page).every((note) => typeof note.text === "string");
}

/** Insert the blocks of another page under free names, with their upper left corner at a position. */
export function insertPage(page: Page, pasted: Page, at: Place): { page: Page; ids: Set<string>; notes: Set<number> } {
  const used = idsOf(page);
  const names = new Map<string, string>();
  for (const block of pasted.blocks) {
    const id = freeId(used, block.id);
    used.add(id);
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
    return withWires({ ...block, id: names.get(block.id)!, at: [x + dx, y + dy] }, wires);
  });
  let next = putBlocks(page, blocks);
  const notes = new Set<number>();
  for (const note of notesOf(pasted) as Note[]) {
    notes.add(notesOf(next).length);
    const [x, y] = note.at ?? [0, 0];
    next = addNote(next, { ...note, at: [x + dx, y + dy] });
  }
  return { page: next, ids: new Set(names.values()), notes };
}

/** The window's own clipboard, for browsers that do not let a page read the system's. */
export const localClipboard = { text: "" };

export async function copy(): Promise<void> {
  const open = doc()!;
  const text = copyText(open.page, open.blocks, open.notes);
  localClipboard.text = text;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without permission to write the clipboard, the window's own copy still works.
  }
}

/** Paste at a position of the page what was copied last; without permission to read the system's clipboard, what this
 *  window copied. */
export async function pasteAt(place: Place): Promise<void> {
  let text = "";
  try {
    text = await navigator.clipboard.readText();
  } catch {
    // The window's own copy is the fallback.
  }
  if (!pasteText(parsePage(text) ? text : localClipboard.text, place)) notify("info", "There are no copied blocks to paste.");
}

const ASIDE = 20; // from what is at the same place

/** Paste where the pointer is, else into the centre of the view, never exactly on top of other blocks. */
export function pasteText(text: string, wanted = viewport.pointer() ?? viewport.centre()): boolean {
  const open = front();
  const found = parsePage(text);
  if (!open || !found || !FEATURES.copyPaste) return false;
  const used = new Set(open.page.blocks.map((block) => String(block.at)));
  let made: ReturnType<typeof insertPage>;
  let [x, y] = wanted;
  do {
    [x, y] = [x + ASIDE, y + ASIDE];
    made = insertPage(open.page, found, [x, y]);
  } while (made.page.blocks.some((block) => made.ids.has(block.id) && used.has(String(block.at))));
  const n = found.blocks.length;
  const [first] = made.ids;
  if (first !== undefined) focusBlock(first); // the keys that follow are about the copy
  change(`paste ${n === 1 ? found.blocks[0]!.id : n ? `${n} blocks` : "notes"}`, () => made.page);
  select(made.ids, made.notes);
  return true;
}

export function duplicate(): void {
  const { page, blocks, notes } = doc()!;
  const text = copyText(page, blocks, notes);
  const chosen = [...selectedBlocks(), ...notesOf(page).filter((_, k) => notes.has(k))].map(({ at }): edit.Place => at ?? [0, 0]);
  const by = shiftOfCopy(page, new Set([...blocks, ...[...notes].map(noteId)]));
  pasteText(text, [Math.min(...chosen.map(([x]) => x)) + by - ASIDE, Math.min(...chosen.map(([, y]) => y)) - ASIDE]);
}

export function copyParameters(): void {
  localClipboard.text = copyText(doc()!.page, doc()!.blocks, new Set());
  notify("info", `The parameters of ${[...doc()!.blocks][0]} can be pasted onto other blocks.`);
}

export function pasteParameters(): void {
  const from = parsePage(localClipboard.text)?.blocks[0];
  if (!from) return;
  const open = doc()!;
  change(`paste parameters of ${from.id}`, (page) => {
    let next = page;
    for (const id of open.blocks) {
      const found = get().catalog.find(blockOf(page, id)?.op ?? "");
      if (found) next = edit.pasteParameters(next, id, from, found.inputs.map((pin) => pin.name), Object.keys(found.attrs));
    }
    return next;
  });
}
