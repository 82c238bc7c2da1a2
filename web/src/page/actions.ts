// Actions on the active page: each edit is a step of its history, and is saved.

import type { Doc } from "../app/store";
import { NOTHING_SELECTED, changeDoc, doc, get, server, set } from "../app/store";
import { inputOf } from "../blocks/pins";
import { fixPositions, freePlace, snap } from "../canvas/layout";
import { goTo, pageAt, record } from "../history/history";
import { attempt, notify, settle, settleRemoved } from "../messages/messages";
import { scheduleSave } from "../project/autosave";
import { saveDraft } from "../project/drafts";
import type { Block, Fix, Json, Page } from "../transport/protocol";
import * as edit from "./edit";
import type { End, Wire } from "./page";
import { blockOf, endText, idsOf, pinPath, wiresOf } from "./page";

/** Edit a page: a step of its history with this label, which is then saved. Callers that waited for the server name the
 *  page, because another may be active by now. */
export function change(label: string, make: (page: Page) => Page, merge = false, name = get().active): void {
  const open = doc(name);
  if (!open) return;
  const made = make(open.page);
  if (made === open.page) return;
  const page = fixPositions(made, open.page);
  const history = FEATURES.undo ? record(open.history, label, page, merge) : open.history;
  replacePage(open.name, { page, history });
  if (page.blocks.length < open.page.blocks.length) settleRemoved(open.name, idsOf(page));
}

function replacePage(name: string, changes: Partial<Doc>): void {
  changeDoc(name, changes);
  saveDraft(doc(name)!);
  scheduleSave(name);
}

/** Change a page and all steps of its history, without a step of its own. */
export function amend(make: (page: Page) => Page): void {
  const open = doc();
  const page = open && make(fixPositions(open.page, open.page));
  if (!open || page === open.page) return;
  const steps = open.history.steps.map((step) => (step.page === open.page ? { ...step, page: page! } : { ...step, page: make(step.page) }));
  replacePage(open.name, { page: page!, history: { ...open.history, steps } });
}

export function goToStep(step: number): void {
  const open = doc();
  if (!open || !FEATURES.undo) return;
  const history = goTo(open.history, step);
  if (history.now === open.history.now) return;
  const page = pageAt(history);
  const ids = new Set(page.blocks.map((block) => block.id));
  const blocks = new Set([...open.blocks].filter((id) => ids.has(id)));
  replacePage(open.name, { page, history, ...NOTHING_SELECTED, blocks });
}

export function undo(): void {
  const open = doc();
  if (open) goToStep(open.history.now - 1);
}

export function redo(): void {
  const open = doc();
  if (open) goToStep(open.history.now + 1);
}

// -- selection --------------------------------------------------------------------------------------------------------

export function select(blocks: Iterable<string>, notes: Iterable<number> = [], wires: Iterable<string> = []): void {
  const open = doc();
  if (open) changeDoc(open.name, { blocks: new Set(blocks), notes: new Set(notes), wires: new Set(wires) });
}

/** The selected blocks, with the positions they are shown at. */
export function selectedBlocks(): Block[] {
  const open = doc()!;
  return fixPositions(open.page, open.page).blocks.filter((block) => open.blocks.has(block.id));
}

/** Select a block and scroll it into view. */
export function showBlock(id: string, pin: string | null = null): void {
  select([id]);
  if (!get().narrow) set({ inspectorOpen: true });
  window.dispatchEvent(new CustomEvent("rowgrad:show", { detail: { id, pin } }));
}

// -- blocks and wires -------------------------------------------------------------------------------------------------

/** The centre of the visible part of the page, where new blocks go by default, and the pointer while it is over the
 *  page. The canvas sets them. */
export const viewport = { centre: (): edit.Place => [100, 100], pointer: (): edit.Place | null => null };

export function place(op: string, at?: edit.Place): string | null {
  const open = doc();
  const { catalog, snapping } = get();
  const found = catalog.find(op);
  if (!open || !found) return null;
  const wanted = at ?? freePlace(open.page, catalog, viewport.centre(), found);
  const position = snapping && FEATURES.gridSnap ? snap(wanted) : wanted;
  let id = "";
  change(`add ${found.name}`, (page) => {
    const [next, made] = edit.addBlock(page, found.name, found.snake_name, position);
    id = made;
    focusBlock(id);
    return next;
  });
  select([id]);
  return id;
}

let focused: string | null = null;

/** Focus a block once it is rendered, and move the view so far that it is visible. */
export function focusBlock(id: string): void {
  focused = id;
}

/** Whether a block that has just been rendered is the one to focus. */
export function takesFocus(id: string): boolean {
  if (focused !== id) return false;
  focused = null;
  return true;
}

export async function fetchCandidates(end: End, side: "from" | "to"): Promise<Record<string, string | null> | null> {
  const open = doc();
  if (!open) return null;
  const args = side === "from" ? { page: open.page, from: endText(end) } : { page: open.page, to: pinPath(end.block, end.pin) };
  const reply = await attempt(() => server().request<{ takes: Record<string, string | null> }>("candidates", args));
  return reply?.takes ?? null;
}

/** Show why a pin rejects a wire, with the fixes that the server knows. */
export async function reportRejection(from: End, to: string, pin: string, reason: string): Promise<void> {
  const open = doc();
  if (!open) return;
  const args = { page: open.page, from: endText(from), to: pinPath(to, pin) };
  const reply = FEATURES.fixes ? await server().request<{ fixes: Fix[] }>("wire_fixes", args).catch(() => null) : null;
  notify("error", reason, { page: open.name, block: to, pin, about: "wire", fixes: reply?.fixes });
}

/** Add a wire if the server accepts it; otherwise show why not. */
export async function connectWire(from: End, to: string, pin: string): Promise<boolean> {
  const open = doc();
  if (!open || !FEATURES.wires) return false;
  const takes = await fetchCandidates(from, "from");
  if (!takes) return false;
  const target = pinPath(to, pin);
  const reason = takes[target];
  if (reason !== null) {
    if (FEATURES.rejections) await reportRejection(from, to, pin, reason ?? `${target} takes no wire from ${endText(from)}`);
    return false;
  }
  const many = inputOf(get().catalog.find(blockOf(open.page, to)?.op ?? ""), pin)?.many ?? false;
  change(`wire ${endText(from)} to ${target}`, (page) => edit.connect(page, from, to, pin, many), false, open.name);
  settle(open.name, "wire", to, pin);
  settle(open.name, "literal", to, pin);
  return true;
}

export function removeSelected(): void {
  const open = doc();
  if (!open || !(open.blocks.size || open.notes.size || open.wires.size)) return;
  change("delete", (page) => {
    // Removing a wire shifts later places of its list pin, so the last one goes first.
    const wires = [...open.wires].map(placeOf).sort((a, b) => b.place - a.place);
    let next = page;
    for (const wire of wires) next = edit.disconnect(next, wire);
    return edit.remove(next, open.blocks, open.notes);
  });
  // A block that keeps the focus would look selected.
  if (document.activeElement instanceof HTMLElement && document.activeElement.matches(".react-flow__node")) document.activeElement.blur();
  select([]);
}

/** The id of a wire's edge, and its inverse. */
export function wireId(to: string, pin: string, place: number): string {
  return JSON.stringify([to, pin, place]);
}

function placeOf(id: string): { to: string; pin: string; place: number } {
  const [to, pin, place] = JSON.parse(id) as [string, string, number];
  return { to, pin, place };
}

export function wireOf(page: Page, id: string): Wire | undefined {
  const { to, pin, place } = placeOf(id);
  return wiresOf(page).find((wire) => wire.to === to && wire.pin === pin && wire.place === place);
}

export function setValue(block: string, pin: string, value: Json | undefined, name = get().active): void {
  change(`${value === undefined ? "clear" : "type"} ${block}.${pin}`, (page) => edit.setValue(page, block, pin, value), false, name);
}

export function setAttr(blocks: readonly string[], attr: string, value: Json | undefined): void {
  const what = blocks.length === 1 ? `${blocks[0]}.${attr}` : `${attr} of ${blocks.length} blocks`;
  change(`set ${what}`, (page) => blocks.reduce((next, block) => edit.setAttr(next, block, attr, value), page));
}

/** Put the same value into a pin of several blocks. */
export function setValues(blocks: readonly string[], pin: string, value: Json | undefined): void {
  change(`type ${pin} of ${blocks.length} blocks`, (page) => blocks.reduce((next, block) => edit.setValue(next, block, pin, value), page));
}

export function renameBlock(id: string, name: string): void {
  if (id === name) return;
  change(`rename ${id}`, (page) => edit.rename(page, id, name));
  select([name]);
}
