// Undo and redo: the pages before and after each edit. Pages share their unchanged blocks.

import type { Block, Page } from "../transport/protocol";

export interface Step {
  label: string;
  page: Page;
}

export interface History {
  steps: Step[]; // the first is the page as it was opened
  now: number; // the index of the current step
}

const MOST = 300;

export function begin(page: Page, label = "opened"): History {
  return { steps: [{ label, page }], now: 0 };
}

/** Add a step after the current one, dropping undone steps. With `merge`, consecutive steps with the same label are one. */
export function record(history: History, label: string, page: Page, merge = false): History {
  let steps = history.steps.slice(0, history.now + 1);
  if (merge && history.now > 0 && steps[history.now]!.label === label) steps = steps.slice(0, -1);
  steps = [...steps, { label, page }];
  if (steps.length > MOST) steps = steps.slice(steps.length - MOST);
  return { steps, now: steps.length - 1 };
}

export function goTo(history: History, step: number): History {
  return { ...history, now: Math.max(0, Math.min(step, history.steps.length - 1)) };
}

export function pageAt(history: History): Page {
  return history.steps[history.now]!.page;
}

// -- serialized for a reload: the first page in full, then the changes of each step --------------------------------------

interface Change {
  label: string;
  blocks: Record<string, Block>; // new or changed
  order?: string[]; // if blocks were added, removed or reordered
  notes?: Page["notes"] | null;
  name?: string;
}

export interface SerializedHistory {
  now: number;
  label: string;
  first: Page;
  changes: Change[];
}

export function serialize(history: History, most = 60): SerializedHistory {
  const from = Math.max(0, Math.min(history.now, history.steps.length - most));
  const steps = history.steps.slice(from);
  const changes = steps.slice(1).map((step, k) => difference(steps[k]!.page, step.page, step.label));
  return { now: history.now - from, label: steps[0]!.label, first: steps[0]!.page, changes };
}

export function deserialize(saved: SerializedHistory): History {
  const steps: Step[] = [{ label: saved.label, page: saved.first }];
  for (const change of saved.changes) steps.push({ label: change.label, page: apply(steps.at(-1)!.page, change) });
  return { steps, now: Math.min(saved.now, steps.length - 1) };
}

function difference(before: Page, after: Page, label: string): Change {
  const old = new Map(before.blocks.map((block) => [block.id, block]));
  const blocks: Record<string, Block> = {};
  for (const block of after.blocks) if (old.get(block.id) !== block) blocks[block.id] = block;
  const change: Change = { label, blocks };
  const order = after.blocks.map((block) => block.id);
  if (order.length !== before.blocks.length || order.some((id, k) => before.blocks[k]!.id !== id)) change.order = order;
  if (before.notes !== after.notes) change.notes = after.notes ?? null;
  if (before.name !== after.name) change.name = after.name;
  return change;
}

function apply(before: Page, change: Change): Page {
  const blocks = new Map(before.blocks.map((block) => [block.id, block]));
  for (const [id, block] of Object.entries(change.blocks)) blocks.set(id, block);
  const order = change.order ?? before.blocks.map((block) => block.id);
  const after: Page = { ...before, blocks: order.map((id) => blocks.get(id)!).filter(Boolean) };
  if (change.name !== undefined) after.name = change.name;
  if (change.notes === null) delete after.notes;
  else if (change.notes !== undefined) after.notes = change.notes;
  return after;
}
