// A result as a heat map, or as a surface of the same numbers.

import { useMemo, useState } from "react";
import type { Doc } from "../app/store";
import { set, useStudio } from "../app/store";
import type { ResultItem } from "../results/results";
import { listResults, resultArgs, shownResult, sizesOf } from "../results/results";
import { ResultSelect } from "../results/ResultSelect";
import { staleReason } from "../results/stale";
import type { HeatMap } from "../transport/protocol";
import { shortNumber } from "../trend/points";
import { LeadingIndices, useLeadingIndices } from "../ui/LeadingIndices";
import { tickOf, useRequest, useThrottledDoc } from "../ui/useRequest";
import type { Scale } from "./colours";
import { cssColour, scaleOf } from "./colours";
import { HeatMapCanvas, SurfaceCanvas } from "./HeatMapCanvas";

const MOST = 256;
const MOST_SURFACE = 64;

export function HeatMapPanel() {
  const open = useThrottledDoc();
  const requested = useStudio((state) => state.shown);
  const [surface, setSurface] = useState(false);
  const results = useMemo(() => listResults(open?.run ?? null).filter((one) => one.result.info.dtype !== "string"), [open?.run]);
  if (!open) return null;
  const first = shownResult(results, open, requested);
  // Unless the user chose a result, prefer a matrix to a single number.
  const chosen = first && (requested?.block === first.block || open.blocks.has(first.block) || isMatrix(first));
  const front = chosen ? first : (results.find(isMatrix) ?? first);
  if (!front) return <p className="quiet">No numbers to paint yet. Run the page, and they are shown here.</p>;
  return <MapSheet key={`${open.name} ${front.key}`} open={open} results={results} front={front} surface={surface} setSurface={setSurface} />;
}

function isMatrix(one: ResultItem): boolean {
  return (one.result.info.shape ?? []).filter((size) => (size ?? 0) > 1).length >= 2;
}

interface Props {
  open: Doc;
  results: ResultItem[];
  front: ResultItem;
  surface: boolean;
  setSurface: (on: boolean) => void;
}

function MapSheet({ open, results, front, surface, setSurface }: Props) {
  const [cell, setCell] = useState<[number, number] | null>(null);
  const [status, setStatus] = useState("");
  const shape = sizesOf(front.result.info);
  const [at, setAt] = useLeadingIndices(`${open.name} ${front.key}`, shape);
  const args = { name: open.name, ...resultArgs(front), at, most: surface ? MOST_SURFACE : MOST };
  const { found, failure } = useRequest<HeatMap>("map", args, tickOf(open));
  const scale = useMemo(() => scaleOf(found?.low ?? null, found?.high ?? null), [found?.low, found?.high]);
  const stale = staleReason(open, front.block, front.pin);
  const thin = found && (found.step[0] > 1 || found.step[1] > 1);
  return (
    <div className="map-panel">
      <div className="look-bar" role="toolbar" aria-label="Heat map">
        <ResultSelect label="Result" results={results} value={front.key} change={({ block, pin, entry }) => set({ shown: { block, pin, entry } })} />
        <LeadingIndices shape={shape} at={at} change={setAt} />
        <button aria-pressed={surface} onClick={() => setSurface(!surface)}>Surface</button>
        {found && <span className="quiet">{found.rows} × {found.columns}{thin ? `, one of every ${found.step[0]} × ${found.step[1]} cells is shown` : ""}</span>}
        {stale && <span className="stale-words">{stale}</span>}
        <span className="map-words" role="status">{status}</span>
      </div>
      {failure && <p className="fault" role="alert">{failure}</p>}
      {found && found.rows > 0 && found.columns > 0 && (
        <div className="map-main">
          {surface ? (
            <SurfaceCanvas heat={found} scale={scale} label={front.key} report={setStatus} />
          ) : (
            <HeatMapCanvas heat={found} scale={scale} label={front.key} args={{ name: open.name, ...resultArgs(front), at }} cell={cell} choose={setCell} tick={tickOf(open)} report={setStatus} />
          )}
          <ScaleBar scale={scale} heat={found} />
        </div>
      )}
      {found && (!found.rows || !found.columns) && <p className="quiet">It has {found.rows} rows and {found.columns} columns: there is nothing to paint.</p>}
    </div>
  );
}

function ScaleBar({ scale, heat }: { scale: Scale; heat: HeatMap }) {
  if (heat.low === null || heat.high === null) return <p className="quiet scale-bar">no finite number</p>;
  const stops = Array.from({ length: 17 }, (_, k) => cssColour(scale.colour(scale.low + ((scale.high - scale.low) * k) / 16)));
  const holes = heat.cells.some((line) => line.includes(null));
  return (
    <div className="scale-bar" role="img" aria-label={`Colours from ${heat.low} to ${heat.high}${scale.diverging ? ", with zero in the middle" : ""}`}>
      <span title={String(heat.high)}>{shortNumber(scale.high)}</span>
      <div className="scale-colours" style={{ background: `linear-gradient(to top, ${stops.join(", ")})` }} />
      <span title={String(heat.low)}>{shortNumber(scale.low)}</span>
      {scale.diverging && <span className="quiet">low {shortNumber(heat.low)}, high {shortNumber(heat.high)}</span>}
      {holes && <span className="quiet">✕ no finite number</span>}
    </div>
  );
}
