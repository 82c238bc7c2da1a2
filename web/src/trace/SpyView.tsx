// The spy plot: all ids of a batch as points, how often rows are named, and the hottest ones.

import { useMemo, useState } from "react";
import type { Spy, SpyAxis } from "../transport/protocol";
import { useRequest, useThrottled } from "../ui/useRequest";
import { Bar, GridPlot } from "./GridPlot";
import { binText, cellText, gridOf } from "./spy";
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
  const grid = useMemo(() => gridOf(spy), [spy]);
  const [above, beside] = [spy.across.pins.join(", "), spy.down.pins.join(", ")];
  return (
    <GridPlot
      grid={grid}
      label={`Spy plot of ${spy.total} ids: rows of ${above} across, rows of ${beside} down. Arrow keys read cells.`}
      across={["0", `rows of ${above} →`, Math.max(0, spy.across.rows - 1).toLocaleString("en")]}
      down={`rows of ${beside} →`}
      rows={spy.down.rows}
      textOf={(down, across) => cellText(spy, down, across)}
      report={report}
    />
  );
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
            <Bar of={count / axis.hot[0]![1]} />
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
