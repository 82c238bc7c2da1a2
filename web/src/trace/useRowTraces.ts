// Traces of the last run: row counts of a block's pins, and the rows that feed a row or are fed by it.

import { useEffect, useMemo } from "react";
import type { Doc, ResultRef } from "../app/store";
import { get, set, useStudio } from "../app/store";
import { blockOf, endsAt, entryText, parseEnd, wiresOf } from "../page/page";
import type { ResultItem } from "../results/results";
import type { ExplainedResult, Page, Trace } from "../transport/protocol";
import { useRequest, useThrottled } from "../ui/useRequest";
import type { Segment } from "./rows";
import { byPin, firstRow, rowsOf, rowsText } from "./rows";

/** The pins of a trace with their row counts in the last run, entry by entry for list pins. */
export function segmentsOf(open: Doc, block: string, pins: readonly string[], side: "inputs" | "outputs"): Segment[] {
  return pins.flatMap((pin) => {
    const many = sizesOf(open, block, pin, side);
    return many.map((size, k) => ({ pin, label: entryText(pin, many.length > 1 ? k : null), size }));
  });
}

function sizesOf(open: Doc, id: string, pin: string, side: "inputs" | "outputs"): (number | null)[] {
  const results = open.run?.results ?? {};
  if (side === "outputs") return list(results[id]?.[pin]).map((one) => one?.info.shape?.[0] ?? null);
  const block = blockOf(open.page, id);
  const ends = block ? endsAt(block, pin).map(parseEnd) : [];
  const known = list(open.checked.blocks[id]?.inputs[pin]);
  if (!ends.length) return known.map((info) => info?.shape?.[0] ?? null);
  return ends.flatMap((end, k) => {
    const found = list(results[end.block]?.[end.pin]);
    // A new block before it has no result yet.
    return (end.index === null ? found : [found[end.index]]).map((one) => (one?.info ?? known[k])?.shape?.[0] ?? null);
  });
}

function list<T>(value: T | T[] | undefined): (T | undefined)[] {
  return Array.isArray(value) ? value : [value];
}

/** Traced blocks that read a result, with the pin that reads it. */
function readersOf(page: Page, result: ResultRef): { block: string; pin: string }[] {
  const { catalog } = get();
  if (!FEATURES.trace) return [];
  return wiresOf(page)
    .filter((wire) => wire.from.block === result.block && wire.from.pin === result.pin && (wire.from.index ?? 0) === (result.entry ?? 0))
    .filter((wire) => catalog.find(blockOf(page, wire.to)?.op ?? "")?.traced)
    .map((wire) => ({ block: wire.to, pin: wire.pin }));
}

export function isTraced(open: Doc, block: string): boolean {
  return FEATURES.trace && get().catalog.find(blockOf(open.page, block)?.op ?? "")?.traced === true;
}

interface RowTraces {
  text: string | null;
  marked: ReadonlySet<number>;
}

/** The results of the last run whose rows can be explained. */
export function useExplained(open: Doc | null) {
  const tick = useThrottled(open?.run ?? null, open?.name, 1000);
  const ask = FEATURES.trace && open !== null && Object.keys(open.run?.results ?? {}).length > 0;
  const reply = useRequest<{ results: ExplainedResult[] }>(ask ? "explained" : null, { name: open?.name }, tick);
  return ask ? reply : { found: null, failure: null };
}

/** A trace of the last run; requested rarely during a run, because it visits all rows. */
export function useTrace(open: Doc | null, of: string | ExplainedResult | null, wanted = true) {
  const block = typeof of === "string" ? of : (of?.block ?? null);
  const tick = useThrottled(open?.run ?? null, block, 1000);
  const ask = wanted && open !== null && block !== null && open.run?.results[block] !== undefined;
  // The record of a block names its pins; of an op inside a block, only those of one result are known.
  const of_pin = of !== null && typeof of === "object" && open && !isTraced(open, of.block) ? { pin: of.pin, ...(of.entry === null ? {} : { entry: of.entry }) } : {};
  return useRequest<Trace>(ask ? "trace" : null, { name: open?.name, block, ...of_pin }, tick);
}

/** Whether the rows of a result, and those they are made of, can be listed side by side; a number has no rows. */
export function hasPairs(open: Doc, result: ExplainedResult): boolean {
  if (!result.sums && !isTraced(open, result.block)) return false;
  const found = open.run?.results[result.block]?.[result.pin];
  const one = Array.isArray(found) ? found[result.entry ?? 0] : found;
  return (one?.info.shape?.length ?? 0) > 0;
}

/** The pins of a result's trace. Those of an op inside the block are not on the page, so their sizes are unknown. */
export function pairSegments(open: Doc, result: ExplainedResult, trace: Trace, side: "inputs" | "outputs"): Segment[] {
  if (isTraced(open, result.block)) return segmentsOf(open, result.block, trace[side], side);
  if (side === "inputs") return trace.inputs.map((pin) => ({ pin, label: pin, size: null }));
  const sizes = sizesOf(open, result.block, result.pin, side);
  return [{ pin: result.pin, label: entryText(result.pin, result.entry), size: sizes[result.entry ?? 0] ?? null }];
}

export function useRowTraces(open: Doc, front: ResultItem, wanted: boolean, row: number): RowTraces {
  const own = isTraced(open, front.block) ? front.block : null;
  const reader = useMemo(() => readersOf(open.page, front)[0] ?? null, [open.page, front.key]);
  const back = useTrace(open, own, wanted).found;
  const on = useTrace(open, reader?.block ?? null, wanted).found;
  const backRows = useMemo(() => back && rowsOf(back), [back]);
  const onRows = useMemo(() => on && rowsOf(on), [on]);
  const parts: string[] = [];
  let mark: Parameters<typeof markRows>[0] = null;
  if (wanted && own && back && backRows) {
    const outputs = segmentsOf(open, own, back.outputs, "outputs");
    const inputs = segmentsOf(open, own, back.inputs, "inputs");
    const first = firstRow(outputs, outputs.find((one) => one.pin === front.pin)?.label ?? "");
    if (first !== null) {
      const sources = backRows.sources.get(first + row) ?? [];
      const cut = back.cut ? ` (of the first ${back.pairs.length} of ${back.total} pairs)` : "";
      parts.push(sources.length ? `row ${row} is fed by ${rowsText(inputs, sources)}${cut}` : `row ${row} is fed by no row of ${back.inputs.join(", ")}${cut}`);
      mark = { block: own, inputs: byPin(inputs, sources), outputs: { [front.pin]: [row] } };
    }
  }
  if (wanted && reader && on && onRows) {
    const outputs = segmentsOf(open, reader.block, on.outputs, "outputs");
    const inputs = segmentsOf(open, reader.block, on.inputs, "inputs");
    const first = firstRow(inputs, inputs.find((one) => one.pin === reader.pin)?.label ?? "");
    if (first !== null && on.inputs.includes(reader.pin)) {
      const targets = onRows.targets.get(first + row) ?? [];
      parts.push(targets.length ? `row ${row} feeds ${reader.block}: ${rowsText(outputs, targets)}` : `row ${row} feeds no row of ${reader.block}`);
      mark ??= { block: reader.block, inputs: { [reader.pin]: [row] }, outputs: byPin(outputs, targets) };
    }
  }
  useMark(mark);
  const traced = useStudio((state) => state.traced);
  const marked = useMemo(() => new Set(markedRows(open, front, traced)), [open.page, front.key, traced]);
  return { text: parts.length ? parts.join("; ") : null, marked };
}

type Mark = { block: string; inputs: Record<string, number[]>; outputs: Record<string, number[]> } | null;

function markRows(mark: Mark): void {
  set({ traced: mark });
}

/** Mark rows on the rest of the page. */
export function useMark(mark: Mark): void {
  const text = JSON.stringify(mark);
  useEffect(() => {
    if (text !== "null") markRows(JSON.parse(text) as Mark);
  }, [text]);
}

/** Marked rows of the shown result: its own, or those that the traced block reads. */
function markedRows(open: Doc, front: ResultItem, traced: Mark): number[] {
  if (!traced) return [];
  if (traced.block === front.block) return traced.outputs[front.pin] ?? [];
  const block = blockOf(open.page, traced.block);
  for (const [pin, rows] of Object.entries(traced.inputs)) {
    const ends = block ? endsAt(block, pin).map(parseEnd) : [];
    if (ends.some((end) => end.block === front.block && end.pin === front.pin && (end.index ?? 0) === (front.entry ?? 0))) return rows;
  }
  return [];
}
