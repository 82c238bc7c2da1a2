// What the panels below look at: the results there are, which of them is in front, and what else can be asked of it.

import { blockOf, endsAt, parseEnd, wiresOf } from "../model/page";
import type { Segment } from "../model/tracing";
import type { Block, Cells, Page, Result, RunState, Trace, Trend } from "../transport/protocol";
import { Refusal } from "../transport/protocol";
import { attempt, say } from "./messages";
import type { Doc, Look, StudioState } from "./store";
import { changeDoc, doc, get, server, set, useStudio } from "./store";

/** One result of the page's last runs. */
export interface Seen extends Look {
  key: string;
  label: string; // result_<pin>, with its number in a list
  result: Result;
}

export interface Element extends Look {
  at: number[];
}

export function lookKey(look: Look): string {
  return `${look.block}.${look.pin}${look.entry === null ? "" : `[${look.entry}]`}`;
}

export function resultsOf(run: RunState | null): Seen[] {
  const found: Seen[] = [];
  for (const [block, pins] of Object.entries(run?.results ?? {})) {
    for (const [pin, told] of Object.entries(pins)) {
      const many = Array.isArray(told);
      (many ? told : [told]).forEach((result, k) => {
        const look: Look = { block, pin, entry: many ? k : null };
        found.push({ ...look, key: lookKey(look), label: `result_${pin}${many ? `[${k}]` : ""}`, result });
      });
    }
  }
  return found;
}

/** The result in front: what somebody pointed at, or the selected block's first, or what a session fetches first. */
export function inFront(seen: readonly Seen[], open: Pick<Doc, "page" | "blocks" | "checked">, look: Look | null): Seen | null {
  const at = (block: string, pin?: string, entry?: number | null) =>
    seen.find((one) => one.block === block && (pin === undefined || one.pin === pin) && (entry == null || one.entry === entry));
  if (look) {
    const found = at(look.block, look.pin, look.entry);
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
  return seen[0] ?? null;
}

function fetchedBy(block: Block) {
  return Object.keys(block.in ?? {}).flatMap((pin) => endsAt(block, pin).map(parseEnd));
}

// The panels follow the selection; what somebody pointed at stays in front until another block is selected.
useStudio.subscribe((state: StudioState, before: StudioState) => {
  const now = state.docs[state.active ?? ""]?.blocks;
  if (!state.look || now === before.docs[before.active ?? ""]?.blocks || !now || now.size !== 1 || now.has(state.look.block)) return;
  if (state.look === before.look) set({ look: null });
});

// -- rows -------------------------------------------------------------------------------------------------------------

/** The pins of a trace with the number of rows each had in the last run, entry by entry where a pin is a list. */
export function segmentsOf(open: Doc, block: string, pins: readonly string[], side: "inputs" | "outputs"): Segment[] {
  return pins.flatMap((pin) => {
    const many = sizesOf(open, block, pin, side);
    return many.map((size, k) => ({ pin, label: many.length > 1 ? `${pin}[${k}]` : pin, size }));
  });
}

function sizesOf(open: Doc, id: string, pin: string, side: "inputs" | "outputs"): (number | null)[] {
  const results = open.run?.results ?? {};
  if (side === "outputs") return list(results[id]?.[pin]).map((one) => one?.info.shape?.[0] ?? null);
  const block = blockOf(open.page, id);
  const ends = block ? endsAt(block, pin).map(parseEnd) : [];
  if (!ends.length) return list(open.checked.blocks[id]?.inputs[pin]).map((info) => info?.shape?.[0] ?? null);
  return ends.flatMap((end) => {
    const found = list(results[end.block]?.[end.pin]);
    return (end.index === null ? found : [found[end.index]]).map((one) => one?.info.shape?.[0] ?? null);
  });
}

function list<T>(value: T | T[] | undefined): (T | undefined)[] {
  return Array.isArray(value) ? value : [value];
}

/** Blocks fed by a result that keep account of rows, with the pin it comes to. */
export function readersOf(page: Page, seen: Look): { block: string; pin: string }[] {
  const { catalog } = get();
  if (!FEATURES.trace) return [];
  return wiresOf(page)
    .filter((wire) => wire.from.block === seen.block && wire.from.pin === seen.pin && (wire.from.index ?? 0) === (seen.entry ?? 0))
    .filter((wire) => catalog.find(blockOf(page, wire.to)?.op ?? "")?.traced)
    .map((wire) => ({ block: wire.to, pin: wire.pin }));
}

export function isTraced(open: Doc, block: string): boolean {
  return FEATURES.trace && get().catalog.find(blockOf(open.page, block)?.op ?? "")?.traced === true;
}

export async function askTrace(name: string, block: string): Promise<Trace> {
  return server().ask<Trace>("trace", { name, block });
}

// -- numbers over time ------------------------------------------------------------------------------------------------

export type Told = { block?: string; pin?: string; entry?: number | null; at?: number[] } & Trend["series"][number];
export type ToldTrend = { series: Told[]; run: number; chosen?: boolean };

export async function watch(name: string, elements: readonly Element[] | null): Promise<boolean> {
  const series = elements?.map(({ entry, ...rest }) => (entry === null ? rest : { ...rest, entry }));
  const reply = await attempt(() => server().ask("watch", { name, ...(series ? { series } : {}) }), { page: name });
  const run = doc(name)?.run;
  if (reply && run) changeDoc(name, { run: { ...run } }); // panels ask again
  return reply !== null;
}

export function elementsOf(trend: ToldTrend): Element[] {
  return trend.series.flatMap(({ block, pin, entry, at }) =>
    block === undefined || pin === undefined ? [] : [{ block, pin, entry: entry ?? null, at: at ?? [] }],
  );
}

export function elementKey(element: Element): string {
  return lookKey(element) + (element.at.length ? `[${element.at.join(",")}]` : "");
}

/** One more number in the trend, beside those that are there. */
export async function watchAlso(element: Element): Promise<boolean> {
  const open = doc();
  if (!open || !FEATURES.trend) return false;
  const trend = await attempt(() => server().ask<ToldTrend>("trend", { name: open.name, since: 0 }));
  if (!trend) return false;
  const others = elementsOf(trend).filter((one) => elementKey(one) !== elementKey(element));
  return watch(open.name, [...others, element]);
}

// -- copying ----------------------------------------------------------------------------------------------------------

const MOST_CELLS = 10_000; // of one window
const MOST_COPIED = 200_000;

/** A matrix as text with tabs, asked for in pieces. */
export async function copyTable(look: Look, at: number[], rows: number, columns: number): Promise<void> {
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
        const found = await askCells(open.name, look, at, [row, beyond], [column, Math.min(wide, column + MOST_CELLS)]);
        parts.push(found.cells);
      }
      for (let k = 0; k < beyond - row; k++) lines.push(parts.flatMap((part) => part[k] ?? []).join("\t"));
      row = beyond;
    }
    await navigator.clipboard.writeText(lines.join("\n"));
  } catch (error) {
    say("error", error instanceof Refusal ? error.fault.message : "The browser did not let the page write to the clipboard.");
    return;
  }
  const cut = most < rows || wide < columns;
  say("info", cut ? `The first ${most} of ${rows} rows are copied: at most ${MOST_COPIED.toLocaleString("en")} cells are.` : `${rows} × ${columns} cells of ${lookKey(look)} are copied.`);
}

export function askCells(name: string, look: Look, at: number[], rows: [number, number], columns: [number, number]): Promise<Cells & { of: [number, number] }> {
  return server().ask("window", { name, ...lookGiven(look), at, rows, columns });
}

export function lookGiven({ block, pin, entry }: Look): Record<string, unknown> {
  return entry === null ? { block, pin } : { block, pin, entry };
}
