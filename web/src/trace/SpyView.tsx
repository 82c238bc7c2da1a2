// The spy plot: all ids of a batch as points, how often rows are named, and the hottest ones.

import { useEffect, useState } from "react";
import type { Spy, SpyAxis } from "../transport/protocol";
import { themeColours } from "../ui/themeColours";
import { useRequest, useThrottled } from "../ui/useRequest";
import { useSize } from "../ui/useSize";
import { binText, cellText, paintSpy } from "./spy";
import type { SheetProps } from "./TracePanel";

const CELLS = 320;

export function SpyView({ open, result, jump }: SheetProps) {
  const [status, setStatus] = useState("");
  const entry = result.entry === null ? {} : { entry: result.entry };
  const tick = useThrottled(open.run, result.block, 1000);
  const { found, failure } = useRequest<Spy>("spy", { name: open.name, block: result.block, pin: result.pin, ...entry, cells: CELLS }, tick);
  if (failure) return <p className="fault" role="alert">{failure}</p>;
  if (!found) return null;
  const hot = found.table === "outputs" ? (row: number) => jump(result, row) : null;
  return (
    <>
      <div className="look-bar">
        <span className="quiet">{found.total.toLocaleString("en")} ids; {found.across.named.toLocaleString("en")} of {found.across.rows.toLocaleString("en")} rows of {found.across.pins.join(", ")} are named</span>
        <span className="spy-words" role="status">{status}</span>
      </div>
      <div className="spy-main">
        <Plot spy={found} report={setStatus} />
        <div className="spy-side">
          <Hot axis={found.across} choose={hot} total={found.total} />
          <Histogram axis={found.across} of="ids of a row" />
          <Histogram axis={found.down} of={`ids of a row of ${found.down.pins.join(", ")}`} />
        </div>
      </div>
    </>
  );
}

function Plot({ spy, report }: { spy: Spy; report: (status: string) => void }) {
  const [box, { width, height }] = useSize<HTMLDivElement>();
  const [theme, setTheme] = useState(0);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setTheme((now) => now + 1);
    dark.addEventListener("change", changed);
    const watcher = new MutationObserver(changed);
    const themed = box.current?.closest("[data-theme]");
    if (themed) watcher.observe(themed, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      dark.removeEventListener("change", changed);
      watcher.disconnect();
    };
  }, [box]);
  const [cell, setCell] = useState<[number, number] | null>(null);
  const canvas = (element: HTMLCanvasElement | null) => {
    if (!element || width === 0 || height === 0) return;
    paintSpy(element, spy, width, height, coloursOf(element));
  };
  useEffect(() => report(cell ? cellText(spy, ...cell) : ""), [cell, spy, report]);
  const point = (event: React.PointerEvent) => {
    const place = event.currentTarget.getBoundingClientRect();
    const at = (size: number, offset: number, cells: number) => Math.min(cells - 1, Math.max(0, Math.floor((offset / size) * cells)));
    setCell([at(place.height, event.clientY - place.y, spy.down.cells), at(place.width, event.clientX - place.x, spy.across.cells)]);
  };
  const walk = (event: React.KeyboardEvent) => {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!by) return;
    const [down, across] = cell ?? [0, 0];
    setCell([Math.min(spy.down.cells - 1, Math.max(0, down + by[0]!)), Math.min(spy.across.cells - 1, Math.max(0, across + by[1]!))]);
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <figure className="spy-plot">
      <div className="spy-canvas" ref={box}>
        <canvas key={theme} ref={canvas} tabIndex={0} role="img" aria-label={`Spy plot of ${spy.total} ids: rows of ${spy.across.pins.join(", ")} across, rows of ${spy.down.pins.join(", ")} down. Arrow keys read cells.`} style={{ width, height }} onPointerMove={point} onPointerLeave={() => setCell(null)} onKeyDown={walk} />
        {cell && <span className="spy-cursor" style={{ left: `${((cell[1] + 0.5) / spy.across.cells) * 100}%`, top: `${((cell[0] + 0.5) / spy.down.cells) * 100}%` }} />}
      </div>
      <figcaption>
        <span>0</span>
        <span>rows of {spy.across.pins.join(", ")} →</span>
        <span>{Math.max(0, spy.across.rows - 1).toLocaleString("en")}</span>
      </figcaption>
      <span className="spy-down">rows of {spy.down.pins.join(", ")} →</span>
    </figure>
  );
}

function coloursOf(element: Element) {
  const { accent, warning, paper, line } = themeColours(element, ["accent", "warning", "paper", "line"]);
  return { ink: accent, hot: warning, paper, grid: line };
}

function Hot({ axis, choose, total }: { axis: SpyAxis; choose: ((row: number) => void) | null; total: number }) {
  if (!axis.hot.length) return <p className="quiet">No row is named twice.</p>;
  return (
    <section className="spy-hot">
      <h3>Hot rows of {axis.pins.join(", ")}</h3>
      <ol>
        {axis.hot.map(([row, count]) => (
          <li key={row}>
            {choose ? <button onClick={() => choose(row)} title={`The sum of row ${row}`}>row {row.toLocaleString("en")}</button> : <span>row {row.toLocaleString("en")}</span>}
            <span className="spy-bar" style={{ width: `${Math.max(2, (60 * count) / axis.hot[0]![1])}px` }} />
            <span>{count.toLocaleString("en")} ids ({((100 * count) / Math.max(total, 1)).toFixed(1)} %)</span>
          </li>
        ))}
      </ol>
    </section>
  );
}

function Histogram({ axis, of }: { axis: SpyAxis; of: string }) {
  const most = Math.max(1, ...axis.degrees);
  const never = axis.rows - axis.named;
  return (
    <section className="spy-histogram">
      <h3>{of}</h3>
      <table>
        <tbody>
          {never > 0 && (
            <tr className="never">
              <th scope="row">none</th>
              <td colSpan={2}>{never.toLocaleString("en")} rows</td>
            </tr>
          )}
          {axis.degrees.map((count, k) => (
            <tr key={k}>
              <th scope="row">{binText(k)}</th>
              <td className="bar"><span style={{ width: `${(100 * count) / most}%` }} /></td>
              <td>{count.toLocaleString("en")}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
