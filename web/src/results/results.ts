// Results of the last runs: the list, the one the panels show, and copying it.

import type { Doc, ResultRef, StudioState } from "../app/store";
import { doc, get, server, set, useStudio } from "../app/store";
import { notify } from "../messages/messages";
import { blockOf, endText, endsAt, entryText, parseEnd } from "../page/page";
import type { Block, Cells, Info, Result, RunState } from "../transport/protocol";
import { RequestError } from "../transport/protocol";
import { isKnown } from "../values/format";

/** One result of the page's last runs. */
export interface ResultItem extends ResultRef {
  key: string;
  label: string; // result_<pin>, with the index of a list entry
  result: Result;
}

export function resultKey(result: ResultRef): string {
  return endText({ ...result, index: result.entry });
}

export function listResults(run: RunState | null): ResultItem[] {
  const found: ResultItem[] = [];
  for (const [block, pins] of Object.entries(run?.results ?? {})) {
    for (const [pin, value] of Object.entries(pins)) {
      const many = Array.isArray(value);
      (many ? value : [value]).forEach((result, k) => {
        const ref: ResultRef = { block, pin, entry: many ? k : null };
        found.push({ ...ref, key: resultKey(ref), label: `result_${entryText(pin, ref.entry)}`, result });
      });
    }
  }
  return found;
}

/** What is known of an output: where validation leaves a size open, the size that the last run found, unless the
 *  block's computation has changed since. */
export function runInfo(open: Doc, block: string, pin: string, index: number | null, checked: Info | Info[] | undefined): Info | Info[] | undefined {
  if (isKnown(checked) || !open.run || open.run.recipes[block] !== open.checked.recipes[block]) return checked;
  const found = open.run.results[block]?.[pin];
  if (!Array.isArray(found)) return found?.info ?? checked;
  return index === null ? checked : (found[index]?.info ?? checked);
}

/** The shape of a result; a run knows every size. */
export function sizesOf({ shape }: Info): number[] {
  return (shape ?? []).map((size) => size ?? 0);
}

/** The result to show: the requested one, else the selected block's first, else the first that a session fetches. */
export function shownResult(results: readonly ResultItem[], open: Pick<Doc, "page" | "blocks" | "checked">, requested: ResultRef | null): ResultItem | null {
  const at = (block: string, pin?: string, entry?: number | null) =>
    results.find((one) => one.block === block && (pin === undefined || one.pin === pin) && (entry == null || one.entry === entry));
  if (requested) {
    const found = at(requested.block, requested.pin, requested.entry);
    if (found) return found;
  }
  for (const id of open.blocks) {
    const found = at(id);
    if (found) return found;
    const block = blockOf(open.page, id);
    if (block && get().catalog.find(block.op)?.runs) {
      const fetched = fetchedBy(block).map((end) => at(end.block, end.pin, end.index)).find(Boolean);
      if (fetched) return fetched;
    }
  }
  for (const id of open.checked.sessions) {
    const block = blockOf(open.page, id);
    const fetched = block && fetchedBy(block).map((end) => at(end.block, end.pin, end.index)).find(Boolean);
    if (fetched) return fetched;
  }
  return results[0] ?? null;
}

function fetchedBy(block: Block) {
  return Object.keys(block.in ?? {}).flatMap((pin) => endsAt(block, pin).map(parseEnd));
}

// The panels follow the selection; a requested result stays until another block is selected.
useStudio.subscribe((state: StudioState, before: StudioState) => {
  const now = state.docs[state.active ?? ""]?.blocks;
  if (!state.shown || now === before.docs[before.active ?? ""]?.blocks || !now || now.size !== 1 || now.has(state.shown.block)) return;
  if (state.shown === before.shown) set({ shown: null });
});

const MOST_CELLS = 10_000; // of one request
const MOST_COPIED = 200_000;

/** Copy a matrix as tab-separated text, requested in pieces. */
export async function copyTable(result: ResultRef, at: number[], rows: number, columns: number): Promise<void> {
  const open = doc();
  if (!open) return;
  const wide = Math.min(columns, MOST_COPIED);
  const most = Math.min(rows, Math.max(1, Math.floor(MOST_COPIED / Math.max(1, wide))));
  const lines: string[] = [];
  try {
    for (let row = 0; row < most; ) {
      const step = Math.max(1, Math.floor(MOST_CELLS / wide));
      const beyond = Math.min(most, row + step);
      const parts: string[][][] = [];
      for (let column = 0; column < wide; column += MOST_CELLS) {
        const found = await fetchCells(open.name, result, at, [row, beyond], [column, Math.min(wide, column + MOST_CELLS)]);
        parts.push(found.cells);
      }
      for (let k = 0; k < beyond - row; k++) lines.push(parts.flatMap((part) => part[k] ?? []).join("\t"));
      row = beyond;
    }
    await navigator.clipboard.writeText(lines.join("\n"));
  } catch (error) {
    notify("error", error instanceof RequestError ? error.fault.message : "The browser did not let the page write to the clipboard.");
    return;
  }
  const cut = most < rows || wide < columns;
  notify("info", cut ? `The first ${most} of ${rows} rows are copied: at most ${MOST_COPIED.toLocaleString("en")} cells are.` : `${rows} × ${columns} cells of ${resultKey(result)} are copied.`);
}

export function fetchCells(name: string, result: ResultRef, at: number[], rows: [number, number], columns: [number, number]): Promise<Cells> {
  return server().request("window", { name, ...resultArgs(result), at, rows, columns });
}

export function resultArgs({ block, pin, entry }: ResultRef): Record<string, unknown> {
  return entry === null ? { block, pin } : { block, pin, entry };
}
