// Rows over time: which rows of a Variable each step changed, and how far each moved.

import { useMemo, useState } from "react";
import { server } from "../app/store";
import { attempt } from "../messages/messages";
import type { RowChanges } from "../transport/protocol";
import { useRequest, useThrottled } from "../ui/useRequest";
import { cellText, distanceText, gridOf, rangeText } from "./changes";
import { Bar, GridPlot } from "./GridPlot";
import type { PageSheetProps } from "./TracePanel";

const CELLS = 320;

export function ChangesView({ open }: PageSheetProps) {
  const [status, setStatus] = useState("");
  const [chosen, setChosen] = useState<string | null>(null);
  const [requested, setRequested] = useState(0);
  const run = useThrottled(open.run, open.name, 500);
  const tick = useMemo(() => ({}), [run, requested]);
  const { found, failure } = useRequest<RowChanges>("row_changes", { name: open.name, cells: CELLS, ...(chosen === null ? {} : { variable: chosen }) }, tick);
  if (failure) {
    // After a reset there may be no such Variable.
    if (chosen !== null) setChosen(null);
    return <p className="fault" role="alert">{failure}</p>;
  }
  if (!found) return null;
  const shown = found.variables.find((one) => one.variable === found.variable);
  if (!shown || !found.picture) return <p className="quiet">No step has changed a Variable yet. Run steps of a page that trains one.</p>;
  const { picture } = found;
  const record = () => void attempt(() => server().request("row_changes", { name: open.name, variable: shown.variable, record: true })).then(() => setRequested(requested + 1));
  return (
    <>
      <div className="look-bar">
        <label>
          Variable{" "}
          <select aria-label="Variable to show" value={found.variable} onChange={(event) => setChosen(event.target.value)}>
            {found.variables.map((one) => <option key={one.variable} value={one.variable}>{one.variable} {one.dtype}[{one.shape.join(",")}]</option>)}
          </select>
        </label>
        {!shown.recorded && <button onClick={record}>Record from the next step on</button>}
        <span className="quiet changes-words">
          {picture.steps ? `${rangeText("step", [picture.first, picture.last])} changed ${picture.changed.toLocaleString("en")} of ${picture.rows.toLocaleString("en")} rows` : shown.recorded ? "The next steps will be recorded." : "Comparing a Variable of this size takes time in every step."}
        </span>
        <span className="spy-words" role="status">{status}</span>
      </div>
      {picture.steps > 0 && (
        <div className="spy-main">
          <Plot picture={picture} report={setStatus} />
          <div className="spy-side">
            <Farthest picture={picture} />
          </div>
        </div>
      )}
    </>
  );
}

interface PictureProps {
  picture: NonNullable<RowChanges["picture"]>;
}

function Plot({ picture, report }: PictureProps & { report: (status: string) => void }) {
  const grid = useMemo(() => gridOf(picture), [picture]);
  return (
    <GridPlot
      grid={grid}
      label={`${picture.rows} rows over ${picture.steps} steps: steps across, rows down. Arrow keys read cells.`}
      across={[`step ${picture.first.toLocaleString("en")}`, "stronger: moved farther", picture.last.toLocaleString("en")]}
      down="rows →"
      rows={picture.rows}
      textOf={(down, across) => cellText(picture, down, across)}
      report={report}
    />
  );
}

function Farthest({ picture }: PictureProps) {
  const most = Math.max(0, ...picture.hot.map(([, , distance]) => distance ?? 0));
  const never = picture.rows - picture.changed;
  return (
    <section className="spy-hot">
      <h3>Rows that moved farthest in total</h3>
      <ol>
        {picture.hot.map(([row, steps, distance]) => (
          <li key={row} data-row={row}>
            <span>row {row.toLocaleString("en")}</span>
            <Bar of={most ? (distance ?? most) / most : 0} />
            <span>{distanceText(distance)} in {steps.toLocaleString("en")} {steps === 1 ? "step" : "steps"}</span>
          </li>
        ))}
      </ol>
      {never > 0 && <p className="quiet">{never.toLocaleString("en")} {never === 1 ? "row has" : "rows have"} not changed.</p>}
    </section>
  );
}
