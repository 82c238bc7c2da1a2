// One step of the page in two ways: under two engines or orders of addition, with the differing digits marked.

import { useState } from "react";
import { server, useStudio } from "../app/store";
import type { Comparison } from "../transport/protocol";
import { messageOf } from "../transport/protocol";
import { differenceOf, placeText } from "./bits";
import type { PageSheetProps } from "./TracePanel";

interface Way {
  engine: string;
  order: string;
}

const AS_DRAWN = "as on the page";

export function CompareView({ open }: PageSheetProps) {
  const catalog = useStudio((state) => state.catalog);
  const engines = useStudio((state) => state.hello?.engines ?? []).filter((engine) => engine.available);
  const orders = [...new Set(open.page.blocks.flatMap((block) => catalog.find(block.op)?.attrs.order?.choices ?? []))].map(String);
  const [a, setA] = useState<Way>({ engine: "numpy", order: orders[0] ?? "" });
  const [b, setB] = useState<Way>({ engine: engines.find((engine) => engine.name !== "numpy" && !orders.length)?.name ?? "numpy", order: orders[1] ?? "" });
  const [found, setFound] = useState<Comparison | null>(null);
  const [failure, setFailure] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const compare = async () => {
    setBusy(true);
    setFailure(null);
    try {
      const fields = { name: open.name, a_engine: a.engine, b_engine: b.engine, ...(a.order ? { a_order: a.order } : {}), ...(b.order ? { b_order: b.order } : {}) };
      setFound(await server().request<Comparison>("compare", fields));
    } catch (error) {
      setFound(null);
      setFailure(messageOf(error));
    }
    setBusy(false);
  };
  const way = (name: string, value: Way, change: (value: Way) => void) => (
    <fieldset className="compare-way">
      <legend>{name}</legend>
      <select aria-label={`Engine of the ${name} step`} value={value.engine} onChange={(event) => change({ ...value, engine: event.target.value })}>
        {engines.map((engine) => <option key={engine.name}>{engine.name}</option>)}
      </select>
      {orders.length > 0 && (
        <select aria-label={`Order of the ${name} step`} value={value.order} onChange={(event) => change({ ...value, order: event.target.value })}>
          <option value="">{AS_DRAWN}</option>
          {orders.map((order) => <option key={order}>{order}</option>)}
        </select>
      )}
    </fieldset>
  );
  return (
    <>
      <div className="look-bar">
        {way("first", a, setA)}
        {way("second", b, setB)}
        <button className="primary" disabled={busy} onClick={() => void compare()}>Compare one step</button>
        <span className="compare-words" role="status">{busy ? "Running both …" : found ? wordsOf(found) : "Both steps start from the Variables as they are now, and change nothing."}</span>
      </div>
      {failure && <p className="fault" role="alert">{failure}</p>}
      {found && <Differences found={found} />}
    </>
  );
}

function wordsOf(found: Comparison): string {
  const all = `${found.results.length} ${found.results.length === 1 ? "result" : "results"}`;
  return found.differing ? `${found.differing} of ${all} differ` : `all bits of ${all} are the same`;
}

function Differences({ found }: { found: Comparison }) {
  const sorted = [...found.results].sort((x, y) => Number(y.differing > 0) - Number(x.differing > 0));
  return (
    <div className="compare-results" tabIndex={0} role="region" aria-label="Results of both steps">
      <table>
        <thead>
          <tr>
            <th scope="col">result</th>
            <th scope="col">differing elements</th>
            <th scope="col">greatest difference</th>
            <th scope="col">first ones: first step, second step</th>
          </tr>
        </thead>
        <tbody>
          {sorted.map((one) => (
            <tr key={`${one.block} ${one.pin} ${one.entry}`} className={one.differing ? "differs" : "same"} data-compared={`${one.block}.${one.pin}`}>
              <td>{one.block}.{one.pin}{one.entry === null ? "" : `[${one.entry}]`} <span className="quiet">{one.dtype}[{one.shape.join(", ")}]</span></td>
              <td>{one.other ? `it is ${one.other}` : one.differing ? `${one.differing.toLocaleString("en")} of ${one.elements.toLocaleString("en")}` : "none"}</td>
              <td>{one.greatest === null ? "" : one.greatest.toPrecision(3)}</td>
              <td>
                {one.cells.slice(0, 4).map((cell, k) => {
                  const parts = differenceOf(cell.a, cell.b);
                  return (
                    <span key={k} className="compare-cell">
                      {placeText(cell.at)} {parts.same}<mark>{parts.a}</mark> {parts.same}<mark>{parts.b}</mark>
                    </span>
                  );
                })}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
