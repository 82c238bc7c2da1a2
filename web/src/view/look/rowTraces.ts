// Rows of a result in words: which rows feed one, and which rows it feeds.

import { useEffect, useMemo } from "react";
import { parseEnd, endsAt, blockOf } from "../../model/page";
import { byPin, firstRow, rowsOf, rowsText } from "../../model/tracing";
import type { Seen } from "../../state/looking";
import { isTraced, readersOf, segmentsOf } from "../../state/looking";
import type { Doc } from "../../state/store";
import { set, useStudio } from "../../state/store";
import type { Trace } from "../../transport/protocol";
import { useAsked, useSlowly } from "./refresh";

interface RowTraces {
  text: string | null;
  marked: ReadonlySet<number>;
}

/** A trace of the last run; asked seldom while a page runs, as it walks through all rows. */
export function useTrace(open: Doc | null, block: string | null, wanted = true) {
  const tick = useSlowly(open?.run ?? null, block, 1000);
  const ask = wanted && open !== null && block !== null && open.run?.results[block] !== undefined;
  return useAsked<Trace>(ask ? "trace" : null, { name: open?.name, block }, tick);
}

export function useRowTraces(open: Doc, front: Seen, wanted: boolean, row: number): RowTraces {
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

/** Tell the rest of the page which rows are meant. */
export function useMark(mark: Mark): void {
  const text = JSON.stringify(mark);
  useEffect(() => {
    if (text !== "null") markRows(JSON.parse(text) as Mark);
  }, [text]);
}

/** Rows of the shown result that are meant: its own, or those it gives to the traced block. */
function markedRows(open: Doc, front: Seen, traced: Mark): number[] {
  if (!traced) return [];
  if (traced.block === front.block) return traced.outputs[front.pin] ?? [];
  const block = blockOf(open.page, traced.block);
  for (const [pin, rows] of Object.entries(traced.inputs)) {
    const ends = block ? endsAt(block, pin).map(parseEnd) : [];
    if (ends.some((end) => end.block === front.block && end.pin === front.pin && (end.index ?? 0) === (front.entry ?? 0))) return rows;
  }
  return [];
}
