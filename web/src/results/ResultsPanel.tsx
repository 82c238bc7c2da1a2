// All results of the last runs, and the shown one as a table.

import { useEffect, useMemo, useRef, useState } from "react";
import type { Doc } from "../app/store";
import { set, useStudio } from "../app/store";
import { blockName } from "../page/page";
import { isTraced, useRowTraces } from "../trace/useRowTraces";
import { watchAlso } from "../trend/series";
import { filterOf } from "../ui/filter";
import { LeadingIndices, useLeadingIndices } from "../ui/LeadingIndices";
import { tickOf, useThrottledDoc } from "../ui/useRequest";
import { matrixOf } from "../values/grid";
import type { ResultItem } from "./results";
import { copyTable, listResults, resultArgs, shownResult, sizesOf } from "./results";
import type { Cell } from "./ResultTable";
import { ResultTable } from "./ResultTable";
import { staleReason } from "./stale";

export function ResultsPanel() {
  const open = useThrottledDoc();
  const requested = useStudio((state) => state.shown);
  const results = useMemo(() => listResults(open?.run ?? null), [open?.run]);
  if (!open) return null;
  const front = shownResult(results, open, requested);
  if (!front) return <p className="quiet">No results yet. Run the page (Ctrl+Enter), and they are shown here.</p>;
  return (
    <div className="results-panel">
      <ResultList open={open} results={results} front={front} />
      <ResultSheet key={`${open.name} ${front.key}`} open={open} front={front} />
    </div>
  );
}

function ResultList({ open, results, front }: { open: Doc; results: ResultItem[]; front: ResultItem }) {
  const [typed, setTyped] = useState("");
  const fits = filterOf(typed);
  const shown = results.filter((one) => fits(`${blockName(open.page, one.block)} ${one.key} ${one.result.info.text}`));
  const choose = (one: ResultItem | undefined) => one && set({ shown: { block: one.block, pin: one.pin, entry: one.entry } });
  const at = shown.findIndex((one) => one.key === front.key);
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => {
    // Browsers may return a promise, which is not a clean-up function.
    void list.current?.querySelector(".chosen")?.scrollIntoView({ block: "nearest" });
  }, [front.key]);
  const step = (event: React.KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    choose(shown[Math.min(Math.max(at + by, 0), shown.length - 1)]);
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div className="result-list">
      <input type="search" aria-label="Filter the results" placeholder={`Filter ${results.length} result${results.length === 1 ? "" : "s"}`} value={typed} onChange={(event) => setTyped(event.target.value)} onKeyDown={step} />
      <ul ref={list} role="listbox" aria-label="Results" tabIndex={0} onKeyDown={step} aria-activedescendant={at < 0 ? undefined : `result-${at}`}>
        {shown.map((one, k) => {
          const stale = staleReason(open, one.block, one.pin);
          return (
            <li key={one.key} id={`result-${k}`} role="option" aria-selected={one.key === front.key} className={`${one.key === front.key ? "chosen" : ""}${stale ? " stale" : ""}`} data-result={one.key} title={stale ?? one.result.preview} onClick={() => choose(one)}>
              <span className="result-of">
                <b title={one.block}>{blockName(open.page, one.block)}</b> {one.label}
              </span>
              <span className="result-is">
                {stale && <em>stale · </em>}
                {one.result.info.text} · run {one.result.run}
              </span>
            </li>
          );
        })}
      </ul>
      {!shown.length && <p className="quiet">Nothing fits.</p>}
    </div>
  );
}

function ResultSheet({ open, front }: { open: Doc; front: ResultItem }) {
  const [cell, setCell] = useState<Cell>([0, 0]);
  const [pointed, setPointed] = useState<number | null>(null);
  const [isTracing, setTracing] = useState(false); // rows are traced once the user points at one
  const { dtype } = front.result.info;
  const shape = sizesOf(front.result.info);
  const [at, setAt] = useLeadingIndices(`${open.name} ${front.key}`, shape);
  const { rows, columns } = matrixOf(shape, at);
  const chosen: Cell = [Math.max(0, Math.min(cell[0], rows - 1)), Math.max(0, Math.min(cell[1], columns - 1))];
  const stale = staleReason(open, front.block, front.pin);
  const traces = useRowTraces(open, front, isTracing, pointed ?? chosen[0]);
  const point = (row: number | null) => {
    setPointed(row);
    if (row !== null) setTracing(true);
  };
  const element = { block: front.block, pin: front.pin, entry: front.entry, at: indexOf(shape, at, chosen) };
  const go = (bottom: "map" | "trace" | "trend") => set({ shown: { block: front.block, pin: front.pin, entry: front.entry }, bottom, bottomOpen: true });
  const toTrend = async () => {
    if (await watchAlso(element)) go("trend");
  };
  return (
    <section className="result-shown" aria-label={`${front.block} ${front.label}`}>
      <header className="result-bar">
        <span className="result-title">
          <b title={front.block}>{blockName(open.page, front.block)}</b> {front.label}
        </span>
        <span className="result-is">{front.result.info.text} · run {front.result.run}</span>
        <LeadingIndices shape={shape} at={at} change={setAt} />
        {FEATURES.trend && dtype !== "string" && (
          <button aria-label="Show in trend" onClick={() => void toTrend()} title={`Record ${element.at.length ? `element [${element.at.join(", ")}]` : "the number"} over the runs`}>
            Trend
          </button>
        )}
        {FEATURES.heatMap && dtype !== "string" && <button onClick={() => go("map")}>Heat map</button>}
        {isTraced(open, front.block) && <button onClick={() => go("trace")}>Trace</button>}
        <button onClick={() => void copyTable(front, at, rows, columns)} aria-label="Copy as TSV" title="Copy the table as text with tabs">Copy</button>
      </header>
      {stale && <p className="stale-words" role="status">{stale}</p>}
      <ResultTable
        label={`Elements of ${front.block} ${front.label}`}
        args={{ name: open.name, ...resultArgs(front), at }}
        rows={rows}
        columns={columns}
        tick={tickOf(open)}
        chosen={chosen}
        choose={(next) => {
          setCell(next);
          point(next[0]);
        }}
        pointAt={point}
        marked={traces.marked}
        onEnter={() => void toTrend()}
      />
      {traces.text && <p className="trace-words" role="status">{traces.text}</p>}
    </section>
  );
}

/** The selected cell as indices of the whole array. */
function indexOf(shape: readonly number[], at: number[], [row, column]: Cell): number[] {
  const rank = shape.length;
  return rank === 0 ? [] : rank === 1 ? [row] : [...at, row, column];
}
