// Which rows feed which: output rows on one side, input rows on the other, lines between them.

import { useEffect, useMemo, useState } from "react";
import type { Doc } from "../app/store";
import { set, useStudio } from "../app/store";
import { staleReason } from "../results/stale";
import type { Trace } from "../transport/protocol";
import { useThrottledDoc } from "../ui/useRequest";
import { ROW, RowList } from "./RowList";
import { byPin, countOf, rowsOf, rowsText } from "./rows";
import { isTraced, segmentsOf, useMark, useTrace } from "./useRowTraces";

const MOST_LINES = 3000;
const MOST_ROWS = 300_000; // beyond, the list is compressed to what browsers can scroll, and rows are not at their usual position

export function TracePanel() {
  const open = useThrottledDoc();
  const requested = useStudio((state) => state.shown);
  if (!open) return null;
  const ids = open.page.blocks.map((block) => block.id).filter((id) => isTraced(open, id) && open.run?.results[id]);
  if (!ids.length) return <p className="quiet">No block of this page that has been run keeps account of rows. Blocks that move, pick or add up rows do.</p>;
  const selected = [...open.blocks].find((id) => ids.includes(id));
  const block = requested && ids.includes(requested.block) ? requested.block : (selected ?? ids[0]!);
  const choose = (id: string) => set({ shown: { block: id, pin: Object.keys(open.run?.results[id] ?? {})[0]!, entry: null } });
  return (
    <div className="trace-panel">
      <TraceSheet key={`${open.name} ${block}`} open={open} block={block}>
        <label>
          Block{" "}
          <select aria-label="Block to trace" value={block} onChange={(event) => choose(event.target.value)}>
            {ids.map((id) => <option key={id}>{id}</option>)}
          </select>
        </label>
      </TraceSheet>
    </div>
  );
}

function TraceSheet({ open, block, children }: { open: Doc; block: string; children: React.ReactNode }) {
  const { found, failure } = useTrace(open, block);
  const [status, setStatus] = useState("");
  const stale = staleReason(open, block);
  return (
    <>
      <div className="look-bar">
        {children}
        {found && <span className="quiet">{found.cut ? `The first ${found.pairs.length.toLocaleString("en")} of ${found.total.toLocaleString("en")} pairs of rows are shown.` : `${found.total} pairs of rows`}</span>}
        {stale && <span className="stale-words">{stale}</span>}
        <span className="trace-words" role="status">{status}</span>
      </div>
      {failure && <p className="fault" role="alert">{failure}</p>}
      {found && <Pairs open={open} block={block} trace={found} report={setStatus} />}
    </>
  );
}

type Side = "outputs" | "inputs";

function Pairs({ open, block, trace, report }: { open: Doc; block: string; trace: Trace; report: (status: string) => void }) {
  const rows = useMemo(() => rowsOf(trace), [trace]);
  const outputs = segmentsOf(open, block, trace.outputs, "outputs");
  const inputs = segmentsOf(open, block, trace.inputs, "inputs");
  const [chosen, setChosen] = useState<{ side: Side; row: number } | null>(null);
  const [scrolled, setScrolled] = useState({ outputs: 0, inputs: 0 });
  const [height, setHeight] = useState(160);
  const others = chosen ? ((chosen.side === "outputs" ? rows.sources : rows.targets).get(chosen.row) ?? []) : [];
  const lit = {
    outputs: new Set(chosen ? (chosen.side === "outputs" ? [chosen.row] : others) : []),
    inputs: new Set(chosen ? (chosen.side === "inputs" ? [chosen.row] : others) : []),
  };
  useMark(chosen && { block, outputs: byPin(outputs, [...lit.outputs]), inputs: byPin(inputs, [...lit.inputs]) });
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
    scrolled: (top: number, height: number) => {
      setScrolled((before) => ({ ...before, [which]: top }));
      setHeight(height);
    },
  });
  return (
    <div className="trace-pairs">
      <RowList title={`Output rows of ${block}`} label="Output rows" partners={(row) => rows.sources.get(row)?.length ?? 0} {...side("outputs")} />
      {isDrawn ? <Lines trace={trace} lit={lit} scrolled={scrolled} height={height} active={chosen !== null} /> : <p className="quiet">Too many rows to draw lines between them.</p>}
      <RowList title={`Input rows of ${block}`} label="Input rows" partners={(row) => rows.targets.get(row)?.length ?? 0} {...side("inputs")} />
    </div>
  );
}

function statusText(chosen: { side: Side; row: number } | null, others: number[], outputs: Parameters<typeof rowsText>[0], inputs: Parameters<typeof rowsText>[0]): string {
  if (!chosen) return "Point at a row, or walk with the arrow keys, to see which rows belong to it.";
  const [own, far] = chosen.side === "outputs" ? [outputs, inputs] : [inputs, outputs];
  const name = rowsText(own, [chosen.row]);
  if (!others.length) return `${name} ${chosen.side === "outputs" ? "is fed by no row" : "feeds no row"}`;
  return `${name} ${chosen.side === "outputs" ? "is fed by" : "feeds"} ${rowsText(far, others)}`;
}

function Lines({ trace, lit, scrolled, height, active }: { trace: Trace; lit: Record<Side, Set<number>>; scrolled: Record<Side, number>; height: number; active: boolean }) {
  const inView = (row: number, which: Side) => (row + 1) * ROW >= scrolled[which] && row * ROW <= scrolled[which] + height;
  const shown: React.ReactNode[] = [];
  const strong: React.ReactNode[] = [];
  for (const [to, from] of trace.pairs) {
    const isLit = lit.outputs.has(to) && lit.inputs.has(from);
    if (!isLit && (!inView(to, "outputs") || !inView(from, "inputs"))) continue;
    const y1 = to * ROW + ROW / 2 - scrolled.outputs;
    const y2 = from * ROW + ROW / 2 - scrolled.inputs;
    const key = `${to} ${from}`;
    const path = `M0 ${y1}C40 ${y1} 60 ${y2} 100 ${y2}`;
    if (isLit) strong.push(<path key={key} d={path} className="lit" />);
    else if (shown.length < MOST_LINES) shown.push(<path key={key} d={path} />);
  }
  return (
    <svg className={`trace-lines${active ? " active" : ""}`} viewBox={`0 0 100 ${height}`} preserveAspectRatio="none" aria-hidden="true">
      {shown}
      {strong}
    </svg>
  );
}
