// One row of a result written out: the equation, and each term with its factor and the total after it.

import { useEffect, useState } from "react";
import type { Doc } from "../app/store";
import { get, set } from "../app/store";
import type { ExplainedResult, RowSum, SumTree } from "../transport/protocol";
import type { RequestState } from "../ui/useRequest";
import { equationOf, equationText, fractionText, idText, numberText, reasonText, rowText, scaleText } from "./sums";

export interface Place {
  inner: string; // an op inside the block; empty for the op that computes the result
  row: number;
}

interface Props {
  open: Doc;
  result: ExplainedResult;
  results: readonly ExplainedResult[];
  path: readonly Place[]; // from the result's row to an op inside the block
  setPath: (path: Place[]) => void;
  jump: (result: ExplainedResult, row: number) => void;
  sum: RequestState<RowSum>;
  setOrder: (order: string) => void;
  columns: number;
  setColumns: (first: number) => void;
  stale: string | null;
}

export const COLUMNS = 8;
const MOST_RUNS = 64;

export function SumPane({ open, result, results, path, setPath, jump, sum, setOrder, columns, setColumns, stale }: Props) {
  const { found, failure } = sum;
  useEffect(() => set({ explained: found && path.length === 1 ? { page: open.name, block: result.block, sum: found, stale: stale !== null } : null }), [found, open.name, result.block, path.length, stale]);
  useEffect(() => () => set({ explained: null }), []);
  if (failure) return <div className="sum-pane" tabIndex={0}><p className="fault" role="alert">{failure}</p></div>;
  if (!found) return <div className="sum-pane" tabIndex={0}><p className="quiet">Choose an output row, and the sum it was computed by is written out here.</p></div>;
  return (
    <section className="sum-pane" aria-label="The sum of the row" tabIndex={0}>
      <header className="sum-head">
        {path.length > 1 && <button onClick={() => setPath(path.slice(0, -1))}>← Back</button>}
        <b>{path.length > 1 ? `${found.op} inside ${result.block}` : `${result.block}.${result.pin}`}, {found.rows === 1 ? found.pin : `row ${found.row}`}</b>
        <span className="quiet">{found.op} · {found.dtype}{found.sum_dtype !== found.dtype ? `, added in ${found.sum_dtype}` : ""}</span>
        {found.orders.length > 1 && found.kind === "sum" && (
          <label>
            Order{" "}
            <select aria-label="Order of addition" value={found.order ?? ""} onChange={(event) => setOrder(event.target.value)}>
              {found.orders.map((one) => <option key={one}>{one}</option>)}
            </select>
          </label>
        )}
        {found.of_columns > COLUMNS && (
          <span className="sum-columns">
            <button aria-label="Columns before" disabled={columns === 0} onClick={() => setColumns(Math.max(0, columns - COLUMNS))}>‹</button>
            columns {found.columns[0]} to {found.columns[1] - 1} of {found.of_columns}
            <button aria-label="Columns after" disabled={found.columns[1] >= found.of_columns} onClick={() => setColumns(columns + COLUMNS)}>›</button>
          </span>
        )}
        {stale ? <span className="sum-verdict stale" title={stale}>stale: of an earlier run</span> : <Verdict sum={found} />}
      </header>
      <EquationLine sum={found} />
      <Terms sum={found} result={result} results={results} path={path} setPath={setPath} jump={jump} />
      {found.parts.map((part) => part.tree.size > 1 && hasSums(part.tree) && (
        <details key={part.columns[0]} className="sum-tree" open>
          <summary>{treeTitle(part.tree, found.parts.length > 1 ? part.columns : null)}</summary>
          <Tree tree={part.tree} columns={found.of_columns} depth={0} />
        </details>
      ))}
    </section>
  );
}

function Verdict({ sum }: { sum: RowSum }) {
  if (sum.kind === "by row") return null;
  if (!sum.differing) return <span className="sum-verdict good" title="The terms, added in this order and rounded as written, give every bit of the result.">✓ gives the result bit for bit</span>;
  return <span className="sum-verdict bad" title={`${sum.sum.join(", ")} instead of ${sum.result.join(", ")}`}>≠ differs from the result in {sum.differing} of {sum.of_columns} columns</span>;
}

/** The sum written out; long rows and sums are cut. */
export function EquationLine({ sum, most = 8 }: { sum: RowSum; most?: number }) {
  const found = equationOf(sum, most);
  if (sum.kind === "zero") return <p className="sum-equation">No row is added to it, so it is <b className="sum-result">{found.result}</b></p>;
  if (sum.kind === "by row") return <p className="sum-equation" title="Computed element by element from the same row of each operand">{equationText(sum)}</p>;
  return (
    <p className="sum-equation" aria-label={equationText(sum, most)}>
      {found.opening}
      {found.terms.map(({ factor, row, term }, k) => (
        <span key={k}>
          {k > 0 && " + "}
          <span className="sum-term" data-tone={k % 6} title={`${term.pin} row ${term.row}${term.column === null ? "" : `, column ${term.column}`}: ${term.values.join(", ")}`}>
            {factor && <b className="sum-factor" title={reasonText(term)}>{factor}</b>}
            {factor && "·"}
            {row}
          </span>
        </span>
      ))}
      {found.more > 0 && <span className="quiet"> + … {found.more.toLocaleString("en")} more …</span>}
      {found.closing} = <b className="sum-result" title={sum.result.join(", ")}>{found.result}</b>
    </p>
  );
}

function Terms({ sum, result, results, path, setPath, jump }: { sum: RowSum } & Pick<Props, "result" | "results" | "path" | "setPath" | "jump">) {
  if (!sum.terms.length) return null;
  const after = new Map<number, string[]>();
  for (const part of sum.parts.slice(0, 1)) {
    for (const step of part.additions) {
      const item = itemAt(part.tree, [...step.path, step.item]);
      if (typeof item === "number") after.set(item, step.total);
    }
  }
  const hasPlaces = sum.terms.some((term) => term.place !== null);
  const scaled = sum.terms.some((term) => term.scales.length > 0);
  const exactly = (values: readonly string[]) => values.join(", ");
  return (
    <div className="sum-terms" tabIndex={0} role="region" aria-label="Terms of the sum">
      <table>
        <thead>
          <tr>
            {hasPlaces && <th scope="col">id</th>}
            <th scope="col">row</th>
            <th scope="col">factor</th>
            <th scope="col">values</th>
            {scaled && <th scope="col">product</th>}
            {after.size > 0 && <th scope="col">total</th>}
          </tr>
        </thead>
        <tbody>
          {sum.terms.map((term) => {
            const origin = sum.origins[term.pin];
            const target = origin && results.find((one) => one.block === origin.block && one.pin === origin.pin && (one.entry ?? 0) === (origin.entry ?? 0));
            const name = `${term.pin} ${term.row}${term.column === null ? "" : `, column ${term.column}`}`;
            const columns = term.column === null ? sum.of_columns : 1;
            const follow = origin?.inner ? () => setPath([...path, { inner: origin.inner, row: term.row }]) : target ? () => jump(target, term.row) : null;
            return (
              <tr key={term.term} data-term={term.term}>
                {hasPlaces && <td>{idText(get().catalog.find(sum.op), term.place, term.id)}</td>}
                <td>{follow ? <button className="sum-follow" title={`How ${name} was computed${origin?.inner ? ` inside ${result.block}` : ` in ${origin?.block}`}`} onClick={follow}>{name} ↩</button> : name}</td>
                <td className="why" title={term.scales.map((scale) => `${scale.divides ? "÷" : "×"} ${scale.by}`).join(" ") || "added as it is"}><b>{fractionText(term.factor)}</b>{term.reason && ` because ${term.reason}`}</td>
                <td title={exactly(term.values)}>{rowText(term.values, columns, COLUMNS)}</td>
                {scaled && <td title={exactly(term.product)}>{rowText(term.product, columns, COLUMNS)}</td>}
                {after.size > 0 && <td title={exactly(after.get(term.term) ?? [])}>{rowText(after.get(term.term) ?? [], columns, COLUMNS)}</td>}
              </tr>
            );
          })}
        </tbody>
        {sum.then.length > 0 && (
          <tfoot>
            <tr>
              <td colSpan={9}>The total{sum.then.map(scaleText).join("")} = {rowText(sum.sum, sum.of_columns, COLUMNS)} <span className="quiet">({sum.then.map((scale) => `${scale.divides ? "÷" : "×"} ${numberText(scale.by)}`).join(" ")})</span></td>
            </tr>
          </tfoot>
        )}
      </table>
      {sum.total_terms > sum.terms.length && <p className="quiet">The first {sum.terms.length} of {sum.total_terms.toLocaleString("en")} terms are listed.</p>}
    </div>
  );
}

function itemAt(tree: SumTree, path: readonly number[]): number | SumTree | undefined {
  let now: number | SumTree | undefined = tree;
  for (const k of path) now = typeof now === "object" ? now.of[k] : undefined;
  return now;
}

export function hasSums(tree: SumTree): boolean {
  return tree.of.some((one) => typeof one === "object");
}

function treeTitle(tree: SumTree, columns: [number, number] | null): string {
  const runs = tree.of.filter((one) => typeof one === "object").length;
  return `${columns ? `Columns ${columns[0]} to ${columns[1] - 1}: ` : ""}the order of addition: ${runs} runs, each added up on its own`;
}

/** The order of addition as nested boxes, one for each sum that is added up on its own. */
function Tree({ tree, columns, depth }: { tree: SumTree; columns: number; depth: number }) {
  const loose = tree.of.filter((one) => typeof one === "number").length;
  const inner = tree.of.filter((one) => typeof one === "object").slice(0, MOST_RUNS);
  const total = tree.total && rowText(tree.total, columns, 3);
  return (
    <div className="tree-sum" data-depth={depth}>
      <span className="tree-title" title={`${tree.from_zero ? "from +0, " : ""}left to right${tree.total ? `: ${tree.total.join(", ")}` : ""}`}>
        {tree.size.toLocaleString("en")} {tree.size === 1 ? "term" : "terms"}{total ? ` → ${total}` : ""}
      </span>
      {inner.length > 0 && (
        <div className="tree-parts">
          {loose > 0 && <div className="tree-sum" data-depth={depth + 1}><span className="tree-title">{loose} {loose === 1 ? "term" : "terms"}</span></div>}
          {inner.map((one, k) => <Tree key={k} tree={one} columns={columns} depth={depth + 1} />)}
        </div>
      )}
    </div>
  );
}

/** The row that the number field shows, for results without a list of rows. */
export function RowField({ row, change }: { row: number; change: (row: number) => void }) {
  const [typed, setTyped] = useState(String(row));
  useEffect(() => setTyped(String(row)), [row]);
  return (
    <label>
      Row{" "}
      <input
        type="number"
        min={0}
        aria-label="Row to explain"
        value={typed}
        onChange={(event) => {
          setTyped(event.target.value);
          if (/^\d+$/.test(event.target.value)) change(Number(event.target.value));
        }}
      />
    </label>
  );
}
