// Where rows come from: the rows behind a row with the sum written out, the scatter view, the spy plot, rows over time,
// and a comparison of two ways to compute the page.

import { useEffect, useRef, useState } from "react";
import type { Doc } from "../app/store";
import { set, useStudio } from "../app/store";
import { blockName } from "../page/page";
import { staleReason } from "../results/stale";
import type { ExplainedResult, RowSum } from "../transport/protocol";
import { useRequest, useThrottled, useThrottledDoc } from "../ui/useRequest";
import { ChangesView } from "./ChangesView";
import { CompareView } from "./CompareView";
import type { Chosen } from "./PairsView";
import { PairsView, outputOf } from "./PairsView";
import { ScatterView } from "./ScatterView";
import { SpyView } from "./SpyView";
import { busiestRow } from "./rows";
import type { Place } from "./SumPane";
import { COLUMNS, RowField, SumPane } from "./SumPane";
import { hasPairs, useExplained, useTrace } from "./useRowTraces";

type View = "rows" | "scatter" | "spy" | PageView;
type PageView = "changes" | "compare"; // of the whole page, whatever its results are
const VIEWS: [View, string, string][] = [
  ["rows", "Sums", "The rows behind a row, and the sum written out"],
  ["scatter", "Scatter", "Every id in the order of addition"],
  ["spy", "Spy plot", "All pairs of a large batch, and the rows that are named most"],
  ["changes", "Over time", "Which rows of a Variable each step changed, and how far each moved"],
  ["compare", "Compare", "The page under two engines or orders of addition, bit by bit"],
];

export function TracePanel() {
  const open = useThrottledDoc();
  const requested = useStudio((state) => state.shown);
  const [view, setView] = useState<View>("rows");
  const [row, setRow] = useState<number | null>(null); // chosen in another view or block
  const { found, failure } = useExplained(open);
  if (!open) return null;
  if (failure && open.run && open.run.run > 0) return <p className="fault" role="alert">{failure}</p>;
  const results = (found?.results ?? []).filter((one) => open.run?.results[one.block]);
  const bar = (shown: View) => (
    <span className="trace-views" role="group" aria-label="View">
      {VIEWS.map(([name, title, tip]) => <button key={name} aria-pressed={shown === name} title={tip} disabled={!results.length && !isPageView(name)} onClick={() => setView(name)}>{title}</button>)}
    </span>
  );
  if (!results.length && open.run?.phase === "failed") return <p className="quiet">The last run failed: nothing to trace.</p>;
  if (!results.length && !open.run?.run) return <p className="quiet">Nothing to trace yet: run a page with a block that moves, picks or adds up rows.</p>;
  if (!results.length || isPageView(view)) {
    const shown = isPageView(view) ? view : "changes";
    const Sheet = { changes: ChangesView, compare: CompareView }[shown];
    return (
      <div className="trace-panel">
        <div className="look-bar">{bar(shown)}</div>
        <Sheet key={`${open.name} ${shown}`} open={open} />
      </div>
    );
  }
  const selected = [...open.blocks].find((id) => results.some((one) => one.block === id));
  const result =
    results.find((one) => one.block === requested?.block && one.pin === requested.pin && one.entry === requested.entry) ??
    results.find((one) => one.block === requested?.block) ??
    results.find((one) => one.block === selected) ??
    results[0]!;
  const choose = (one: ExplainedResult) => set({ shown: { block: one.block, pin: one.pin, entry: one.entry } });
  const jump = (one: ExplainedResult, to: number) => {
    setView("rows");
    setRow(to);
    choose(one);
  };
  const stale = staleReason(open, result.block);
  const Sheet = { rows: RowsSheet, scatter: ScatterView, spy: SpyView }[view];
  return (
    <div className="trace-panel">
      <div className="look-bar">
        {bar(view)}
        <label>
          Result{" "}
          <select aria-label="Block to trace" value={results.indexOf(result)} onChange={(event) => choose(results[Number(event.target.value)]!)}>
            {results.map((one, k) => <option key={k} value={k}>{blockName(open.page, one.block)}{nameOf(one).slice(one.block.length)}</option>)}
          </select>
        </label>
        {stale && <span className="stale-words">{stale}</span>}
      </div>
      <Sheet key={`${open.name} ${nameOf(result)} ${view}`} open={open} result={result} results={results} jump={jump} first={row} />
    </div>
  );
}

function nameOf(one: ExplainedResult): string {
  return `${one.block}.${one.pin}${one.entry === null ? "" : `[${one.entry}]`}`;
}

function isPageView(view: View): view is PageView {
  return view === "changes" || view === "compare";
}

export interface PageSheetProps {
  open: Doc;
}

export interface SheetProps extends PageSheetProps {
  result: ExplainedResult;
  results: readonly ExplainedResult[];
  jump: (result: ExplainedResult, row: number) => void;
  first: number | null; // the row to begin with
}

function RowsSheet({ open, result, results, jump, first }: SheetProps) {
  const [status, setStatus] = useState("");
  const [chosen, setChosen] = useState<Chosen | null>(first === null ? null : { side: "outputs", row: first });
  const [path, setPath] = useState<Place[]>([]); // inside the block
  const [order, setOrder] = useState("");
  const [columns, setColumns] = useState(0);
  const listed = hasPairs(open, result);
  const { found: trace, failure } = useTrace(open, listed ? result : null);
  const began = useRef(first !== null);
  useEffect(() => {
    if (began.current || !trace) return;
    began.current = true;
    const busiest = busiestRow(trace);
    if (busiest !== null) setChosen({ side: "outputs", row: busiest });
  }, [trace]);
  const row = trace ? outputOf(open, result, trace, chosen) : { pin: result.pin, row: chosen?.row ?? 0 };
  const wanted = useThrottled(JSON.stringify(row), result, 60);
  useEffect(() => {
    setPath([]);
    setColumns(0);
  }, [wanted]);
  const at = JSON.parse(wanted) as { pin: string; row: number } | null;
  const inner = path.at(-1);
  const pin = listed && trace && !isEntry(open, result) ? (at?.pin ?? result.pin) : result.pin;
  const entry = result.entry === null ? {} : { entry: result.entry };
  const args = { name: open.name, block: result.block, pin, ...entry, row: inner?.row ?? at?.row ?? 0, columns: [columns, columns + COLUMNS], most: 64, ...(inner ? { inner: inner.inner } : {}), ...(order ? { order } : {}) };
  const tick = useThrottled(open.run, result.block, 1000);
  const sum = useRequest<RowSum>(at ? "explain" : null, args, tick);
  const shown = at ? sum : { found: null, failure: null };
  const takesIds = useStudio((state) => state.catalog.find(result.op)?.inputs.some((pin) => pin.name === "segment_ids" || pin.name === "starts"));
  const named = trace?.total === 1 ? (takesIds ? "id" : "entry") : takesIds ? "ids" : "entries";
  return (
    <>
      <div className="look-bar">
        {!listed && <RowField row={chosen?.row ?? 0} change={(next) => setChosen({ side: "outputs", row: next })} />}
        {trace && <span className="quiet">{trace.cut ? `The first ${trace.pairs.length.toLocaleString("en")} of ${trace.total.toLocaleString("en")} ${named} are shown.` : `${trace.total.toLocaleString("en")} ${named}`}</span>}
        <span className="trace-words" role="status">{status}</span>
      </div>
      {failure && <p className="fault" role="alert">{failure}</p>}
      <div className={`trace-main${listed ? "" : " no-lists"}`}>
        {trace && <PairsView open={open} result={result} trace={trace} chosen={chosen} setChosen={setChosen} sum={path.length ? null : shown.found} report={setStatus} />}
        <SumPane open={open} result={result} results={results} path={[{ inner: "", row: at?.row ?? 0 }, ...path]} setPath={(next) => setPath(next.slice(1))} jump={jump} sum={shown} setOrder={setOrder} columns={columns} setColumns={setColumns} stale={staleReason(open, result.block)} />
      </div>
    </>
  );
}

function isEntry(open: Doc, result: ExplainedResult): boolean {
  return result.entry !== null || open.run?.results[result.block]?.[result.pin] instanceof Array;
}
