// Which rows feed which: input rows on the left, output rows on the right, as on the canvas, and ribbons between them.

import { useEffect, useMemo, useState } from "react";
import type { Doc } from "../app/store";
import type { ExplainedResult, RowSum, Trace } from "../transport/protocol";
import { useSize } from "../ui/useSize";
import { ROW, RowList } from "./RowList";
import type { Segment } from "./rows";
import { byPin, countOf, firstRow, placeOf, rowsOf, rowsText } from "./rows";
import type { Ribbon } from "./sums";
import { ribbonWidth, ribbonsOf } from "./sums";
import { pairSegments, useMark } from "./useRowTraces";

const MOST_LINES = 3000;
const MOST_LABELS = 12; // more would cover each other
const MOST_ROWS = 300_000; // beyond, the list is compressed to what browsers can scroll, and rows are not at their usual position

export type Side = "outputs" | "inputs";
export interface Chosen {
  side: Side;
  row: number;
}

interface Props {
  open: Doc;
  result: ExplainedResult;
  trace: Trace;
  chosen: Chosen | null;
  setChosen: (chosen: Chosen | null) => void;
  sum: RowSum | null; // of the chosen output row
  report: (status: string) => void;
}

/** The pin and row of a chosen output row: rows are numbered through all output pins. */
export function outputOf(open: Doc, result: ExplainedResult, trace: Trace, chosen: Chosen | null): { pin: string; row: number } | null {
  if (chosen?.side !== "outputs") return null;
  const place = placeOf(pairSegments(open, result, trace, "outputs"), chosen.row);
  return place && { pin: place.segment.pin, row: place.row };
}

export function PairsView({ open, result, trace, chosen, setChosen, sum, report }: Props) {
  const rows = useMemo(() => rowsOf(trace), [trace]);
  const outputs = pairSegments(open, result, trace, "outputs");
  const inputs = pairSegments(open, result, trace, "inputs");
  const [scrolled, setScrolled] = useState({ outputs: 0, inputs: 0 });
  const others = chosen ? ((chosen.side === "outputs" ? rows.sources : rows.targets).get(chosen.row) ?? []) : [];
  const lit = {
    outputs: new Set(chosen ? (chosen.side === "outputs" ? [chosen.row] : others) : []),
    inputs: new Set(chosen ? (chosen.side === "inputs" ? [chosen.row] : others) : []),
  };
  useMark(chosen && { block: result.block, outputs: byPin(outputs, [...lit.outputs]), inputs: byPin(inputs, [...lit.inputs]) });
  const isDrawn = Math.max(rows.lastOutput, rows.lastInput) < MOST_ROWS;
  const status = statusText(chosen, others, outputs, inputs);
  useEffect(() => report(status), [status, report]);
  const side = (which: Side) => ({
    segments: which === "outputs" ? outputs : inputs,
    count: which === "outputs" ? countOf(outputs, rows.lastOutput) : countOf(inputs, rows.lastInput),
    lit: lit[which],
    chosen: chosen?.side === which ? chosen.row : null,
    choose: (row: number | null) => setChosen(row === null ? null : { side: which, row }),
    follow: chosen && chosen.side !== which ? (others[0] ?? null) : null,
    scrolled: (top: number) => setScrolled((before) => ({ ...before, [which]: top })),
  });
  const ribbons = useMemo(() => (sum && chosen?.side === "outputs" ? ribbonsByRow(sum, inputs, others) : null), [sum, chosen, trace]); // eslint-disable-line
  return (
    <div className="trace-pairs">
      <RowList title={`Input rows of ${result.block}`} label="From" partners={(row) => rows.targets.get(row)?.length ?? 0} {...side("inputs")} />
      {isDrawn ? <Lines trace={trace} lit={lit} scrolled={scrolled} active={chosen !== null} ribbons={ribbons} /> : <p className="quiet">Too many rows to draw lines between them.</p>}
      <RowList title={`Output rows of ${result.block}`} label="Into" partners={(row) => rows.sources.get(row)?.length ?? 0} {...side("outputs")} />
    </div>
  );
}

/** The ribbons of the chosen row, by input row; null while the sum is that of another row. */
function ribbonsByRow(sum: RowSum, inputs: readonly Segment[], sources: readonly number[]): Map<number, Ribbon> | null {
  const found = new Map<number, Ribbon>();
  for (const ribbon of ribbonsOf(sum)) {
    const first = inputs.length > 1 ? firstRow(inputs, ribbon.pin) : 0;
    if (first === null || !sources.includes(first + ribbon.row)) return null;
    found.set(first + ribbon.row, ribbon);
  }
  return found;
}

function statusText(chosen: Chosen | null, others: number[], outputs: Parameters<typeof rowsText>[0], inputs: Parameters<typeof rowsText>[0]): string {
  if (!chosen) return "Point at a row, or walk with the arrow keys, to see which rows belong to it.";
  const [own, far] = chosen.side === "outputs" ? [outputs, inputs] : [inputs, outputs];
  const name = rowsText(own, [chosen.row]);
  if (!others.length) return `${name} ${chosen.side === "outputs" ? "is fed by no row" : "feeds no row"}`;
  return `${name} ${chosen.side === "outputs" ? "is fed by" : "feeds"} ${rowsText(far, others)}`;
}

interface LinesProps {
  trace: Trace;
  lit: Record<Side, Set<number>>;
  scrolled: Record<Side, number>;
  active: boolean;
  ribbons: Map<number, Ribbon> | null;
}

function Lines({ trace, lit, scrolled, active, ribbons }: LinesProps) {
  const [box, { width, height }] = useSize<HTMLDivElement>();
  const inView = (row: number, which: Side) => (row + 1) * ROW >= scrolled[which] && row * ROW <= scrolled[which] + height;
  const shown: React.ReactNode[] = [];
  const strong: React.ReactNode[] = [];
  const tones = [...(ribbons?.keys() ?? [])];
  const labels: React.ReactNode[] = [];
  const largest = Math.max(0, ...[...(ribbons?.values() ?? [])].map((ribbon) => Math.abs(ribbon.weight ?? 0)));
  const drawn = new Set<string>();
  for (const [to, from] of trace.pairs) {
    const isLit = lit.outputs.has(to) && lit.inputs.has(from);
    const key = `${to} ${from}`;
    if (drawn.has(key) || (!isLit && (!inView(to, "outputs") || !inView(from, "inputs")))) continue;
    const y1 = from * ROW + ROW / 2 - scrolled.inputs;
    const y2 = to * ROW + ROW / 2 - scrolled.outputs;
    const path = `M0 ${y1}C${width * 0.4} ${y1} ${width * 0.6} ${y2} ${width} ${y2}`;
    if (isLit) {
      drawn.add(key);
      const ribbon = ribbons?.get(from);
      strong.push(<path key={key} d={path} className="lit" data-tone={ribbon && tones.indexOf(from) % 6} style={ribbon && { strokeWidth: ribbonWidth(ribbon.weight, largest) }} />);
      if (ribbon && lit.inputs.size <= MOST_LABELS) labels.push(<g key={key}><title>{ribbon.reason}</title><text x={width * 0.28} y={y1 + (y2 - y1) * 0.2 + 4}>{ribbon.label}</text></g>);
    } else if (shown.length < MOST_LINES) {
      drawn.add(key);
      shown.push(<path key={key} d={path} />);
    }
  }
  return (
    <div className="trace-between" ref={box}>
      <svg className={`trace-lines${active ? " active" : ""}`} aria-hidden="true">
        {shown}
        {strong}
        {labels}
      </svg>
    </div>
  );
}
