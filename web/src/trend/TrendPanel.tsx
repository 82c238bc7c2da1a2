// Numbers over the runs: those that sessions fetch, or those that were chosen.

import { X } from "lucide-react";
import { useMemo, useState } from "react";
import type { Doc } from "../app/store";
import { useStudio } from "../app/store";
import { blockName } from "../page/page";
import type { ResultItem } from "../results/results";
import { listResults, shownResult } from "../results/results";
import { ResultSelect } from "../results/ResultSelect";
import { MiddleText } from "../ui/MiddleText";
import { tickOf, useRequest, useThrottledDoc } from "../ui/useRequest";
import { Chart, dashOf, hueOf } from "./Chart";
import { lastOf, readIndices, shortNumber, since } from "./points";
import type { SeriesReply, TrendReply } from "./series";
import { elementKey, elementsOf, watch, watchAlso } from "./series";

const SPANS: [string, number | null][] = [["last 100", 100], ["last 1,000", 1000], ["all", null]]; // prettier-ignore

export function TrendPanel() {
  const open = useThrottledDoc();
  const [span, setSpan] = useState<number | null>(null);
  const [log, setLog] = useState(false);
  const [auto, setAuto] = useState(true);
  const args = { name: open?.name, since: since(open?.run?.run ?? 0, span) };
  const { found, failure } = useRequest<TrendReply>(open ? "trend" : null, args, tickOf(open));
  if (!open) return null;
  const lines = found?.series ?? [];
  const positive = lines.some((line) => line.points.some(([, value]) => value !== null && value > 0));
  const hidden = log && lines.some((line) => line.points.some(([, value]) => value !== null && value <= 0));
  return (
    <div className="trend-panel">
      <div className="trend-main">
        <div className="look-bar" role="toolbar" aria-label="Trend">
          <span role="group" aria-label="Scale">
            <button aria-pressed={!log} onClick={() => setLog(false)}>Linear</button>
            <button aria-pressed={log} onClick={() => setLog(true)}>Log</button>
          </span>
          <label className="check">
            <input type="checkbox" checked={auto} onChange={(event) => setAuto(event.target.checked)} /> Auto-scale
          </label>
          <label>
            Runs{" "}
            <select aria-label="Runs shown" value={String(span)} onChange={(event) => setSpan(SPANS.find(([, n]) => String(n) === event.target.value)![1])}>
              {SPANS.map(([text, n]) => <option key={text} value={String(n)}>{text}</option>)}
            </select>
          </label>
          {hidden && <span className="quiet">Log shows no value of 0 or below.</span>}
          {failure && <span className="fault" role="alert">{failure}</span>}
        </div>
        {lines.length ? (
          <Chart key={open.name} lines={lines} log={log && positive} auto={auto} />
        ) : (
          <p className="quiet">{found?.chosen ? "Nothing is recorded: add a series." : "Nothing is recorded yet. Fetched numbers are recorded from the first run; add others here."}</p>
        )}
      </div>
      <div className="trend-side">
        <Legend open={open} trend={found} />
        <AddSeries open={open} />
        <LastValues open={open} lines={lines} />
      </div>
    </div>
  );
}

function Legend({ open, trend }: { open: Doc; trend: TrendReply | null }) {
  if (!trend?.series.length) return null;
  const remove = (line: SeriesReply) => {
    const rest = elementsOf(trend).filter((one) => elementKey(one) !== line.label);
    void watch(open.name, rest);
  };
  return (
    <table className="legend" aria-label="Series">
      <tbody>
        {trend.series.map((line, k) => {
          const last = lastOf(line.points);
          return (
            <tr key={line.label} data-series={line.label}>
              <td>
                <svg width="22" height="8" aria-hidden="true">
                  <line x1="0" y1="4" x2="22" y2="4" stroke={hueOf(k)} strokeWidth="3" strokeDasharray={dashOf(k).join(" ")} />
                </svg>
              </td>
              <th scope="row" title={line.label}><MiddleText text={nameOf(open, line)} /></th>
              <td className="value" title={last ? `run ${last[0]}: ${last[1] ?? "no number"}` : ""}>{last ? shortNumber(last[1]) : "no value yet"}</td>
              <td>{line.block !== undefined && <button className="plain" aria-label={`Remove ${line.label} from the trend`} onClick={() => remove(line)}><X size={13} aria-hidden="true" /></button>}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

function AddSeries({ open }: { open: Doc }) {
  const results = useMemo(() => listResults(open.run), [open.run]);
  const requested = useStudio((state) => state.shown);
  const [chosen, setChosen] = useState<string | null>(null);
  const [typed, setTyped] = useState("");
  const front: ResultItem | null = results.find((one) => one.key === chosen) ?? shownResult(results, open, requested);
  const rank = front?.result.info.shape?.length ?? 0;
  const single = (front?.result.info.shape ?? []).every((size) => size === 1);
  const at = readIndices(typed);
  const wrong = at === null || (at.length > 0 && at.length !== rank);
  // If no index is typed, record an array's first element.
  const add = () => front && !wrong && void watchAlso({ block: front.block, pin: front.pin, entry: front.entry, at: at!.length || single ? at! : new Array<number>(rank).fill(0) });
  return (
    <form
      className="add-series"
      aria-label="Add a series"
      onSubmit={(event) => {
        event.preventDefault();
        add();
      }}
    >
      <ResultSelect label="Result to record" results={results} value={front?.key ?? null} change={(one) => setChosen(one.key)} />
      {rank > 0 && (
        <label>
          Element{" "}
          <input value={typed} aria-label="Element to record" aria-invalid={wrong} placeholder={new Array(rank).fill("0").join(", ")} title={`${rank} ${rank === 1 ? "index" : "indices"}, such as ${new Array(rank).fill("0").join(", ")}`} onChange={(event) => setTyped(event.target.value)} />
        </label>
      )}
      <button disabled={!front || wrong}>Add</button>
      <button type="button" onClick={() => void watch(open.name, null)} title="Record every number that sessions fetch">Default</button>
    </form>
  );
}

/** The chart as a table. */
function LastValues({ open, lines }: { open: Doc; lines: SeriesReply[] }) {
  const runs = [...new Set(lines.flatMap((line) => line.points.slice(-10).map(([run]) => run)))].sort((a, b) => b - a).slice(0, 10);
  if (!runs.length) return null;
  return (
    <details className="last-values">
      <summary>Last values as a table</summary>
      <table aria-label="Last values">
        <thead>
          <tr>
            <th scope="col">run</th>
            {lines.map((line) => <th scope="col" key={line.label} title={line.label}>{nameOf(open, line)}</th>)}
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <tr key={run}>
              <th scope="row">{run}</th>
              {lines.map((line) => <td key={line.label}>{textAt(line, run)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}

/** The label of a series, with the name of its block. */
function nameOf(open: Doc, { block, label }: SeriesReply): string {
  const id = block ?? label.split(".")[0]!;
  return blockName(open.page, id) + label.slice(id.length);
}

function textAt(line: SeriesReply, run: number): string {
  const found = line.points.findLast(([one]) => one === run);
  return found ? String(found[1] ?? "no number") : "";
}
