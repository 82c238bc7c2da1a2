// The scatter view's data: what is drawn where, and what has been added up after some ids.

import type { Scatter, ScatterStep } from "../transport/protocol";

/** A line of a column: one row, or many neighbouring rows that no id names. */
export interface Slot {
  pin: string;
  first: number;
  last: number;
  named: boolean;
}

const MOST_SINGLE = 200; // beyond, rows that are never named are drawn together

/** The lines of a column: all rows if there are few, else only the named ones and the gaps between them. */
export function slotsOf(pin: string, rows: number, named: readonly number[]): Slot[] {
  const is = new Set(named);
  if (rows <= MOST_SINGLE) return Array.from({ length: rows }, (_, row) => ({ pin, first: row, last: row, named: is.has(row) }));
  const slots: Slot[] = [];
  let next = 0;
  for (const row of [...is].sort((a, b) => a - b)) {
    if (row > next) slots.push({ pin, first: next, last: row - 1, named: false });
    slots.push({ pin, first: row, last: row, named: true });
    next = row + 1;
  }
  if (next < rows) slots.push({ pin, first: next, last: rows - 1, named: false });
  return slots;
}

export function sourceSlots(scatter: Scatter): Slot[] {
  return scatter.sources.flatMap(({ pin, rows }) => slotsOf(pin, rows, scatter.steps.filter((step) => step.pin === pin).map((step) => step.from)));
}

export function targetSlots(scatter: Scatter): Slot[] {
  return slotsOf(scatter.pin, scatter.rows, scatter.ends.map((end) => end.row));
}

export interface Progress {
  done: number; // ids of the row that have been added
  of: number;
  total: string[]; // of the run in progress, or the row's result once all are added
}

/** What has been added to each row after the first ids. */
export function progressAfter(scatter: Scatter, count: number): Map<number, Progress> {
  const found = new Map<number, Progress>();
  const ends = new Map(scatter.ends.map((end) => [end.row, end]));
  for (const step of scatter.steps.slice(0, count)) {
    const done = (found.get(step.to)?.done ?? 0) + 1;
    const end = ends.get(step.to);
    const of = end?.terms ?? done;
    found.set(step.to, { done, of, total: done === of && end ? end.sum : step.total });
  }
  return found;
}

/** One sum of the tree of a row: the terms that are added directly, and how many of them are done. */
export interface Run {
  path: number[];
  size: number;
  done: number;
  total: string[] | null;
}

/** The runs of a row in the order of addition, after the first ids. */
export function runsOf(scatter: Scatter, row: number, count: number): Run[] {
  const found = new Map<string, Run>();
  scatter.steps.forEach((step, k) => {
    if (step.to !== row) return;
    const key = step.path.join(".");
    const run = found.get(key) ?? { path: step.path, size: 0, done: 0, total: null };
    run.size += 1;
    if (k < count) {
      run.done += 1;
      run.total = step.total;
    }
    found.set(key, run);
  });
  return [...found.values()];
}

export interface TreeNode {
  path: number[];
  children: TreeNode[];
  run: Run | null;
}

/** The tree above the runs. */
export function treeOf(runs: readonly Run[]): TreeNode {
  const root: TreeNode = { path: [], children: [], run: null };
  for (const run of runs) {
    let node = root;
    run.path.forEach((_, depth) => {
      const path = run.path.slice(0, depth + 1);
      let child = node.children.find((one) => one.path.at(-1) === path.at(-1));
      if (!child) node.children.push((child = { path, children: [], run: null }));
      node = child;
    });
    node.run = run;
  }
  return root;
}

export function stepText(step: ScatterStep | undefined): string {
  return step ? `${step.pin} row ${step.from}` : "";
}
