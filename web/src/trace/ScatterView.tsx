// The scatter view: rows move to the rows they are added to, id by id in the order of addition.

import { useEffect, useMemo, useState } from "react";
import type { Scatter, ScatterStep } from "../transport/protocol";
import { useRequest, useThrottled } from "../ui/useRequest";
import { useSize } from "../ui/useSize";
import type { Slot, TreeNode } from "./scatter";
import { progressAfter, runsOf, sourceSlots, targetSlots, treeOf } from "./scatter";
import { get } from "../app/store";
import { fractionText, idText, reasonText, ribbonWidth, rowText } from "./sums";
import type { SheetProps } from "./TracePanel";

const ROW = 24;
const MOST_IDS = 1000;
const PACE = 700; // milliseconds between two ids while it plays
const MOST_SIDE = 210;

export function ScatterView({ open, result, jump }: SheetProps) {
  const [order, setOrder] = useState("");
  const entry = result.entry === null ? {} : { entry: result.entry };
  const tick = useThrottled(open.run, result.block, 1000);
  const { found, failure } = useRequest<Scatter>("scatter", { name: open.name, block: result.block, pin: result.pin, ...entry, most: MOST_IDS, columns: 4, ...(order ? { order } : {}) }, tick);
  if (failure) return <p className="fault" role="alert">{failure}</p>;
  if (!found) return null;
  if (!found.steps.length) return <p className="quiet">{found.total ? `A single row is the sum of more than ${MOST_IDS.toLocaleString("en")} ids; the spy plot shows batches of any size.` : "No id names a row, so nothing is added up."}</p>;
  return <Steps scatter={found} setOrder={setOrder} explain={(row) => jump(result, row)} />;
}

function Steps({ scatter, setOrder, explain }: { scatter: Scatter; setOrder: (order: string) => void; explain: (row: number) => void }) {
  const [wanted, setWanted] = useState(scatter.steps.length);
  const [playing, setPlaying] = useState(false);
  const count = Math.min(wanted, scatter.steps.length);
  useEffect(() => {
    if (!playing) return;
    const timer = setInterval(() => setWanted((now) => Math.min(now + 1, scatter.steps.length)), PACE);
    return () => clearInterval(timer);
  }, [playing, scatter.steps.length]);
  useEffect(() => {
    if (playing && count === scatter.steps.length) setPlaying(false);
  }, [playing, count, scatter.steps.length]);
  const play = () => {
    if (count === scatter.steps.length) setWanted(0);
    setPlaying(!playing);
  };
  const current = count > 0 ? scatter.steps[count - 1] : undefined;
  const runs = current ? runsOf(scatter, current.to, count) : [];
  return (
    <>
      <div className="look-bar scatter-bar">
        <button onClick={play} aria-label={playing ? "Pause" : "Play the additions"}>{playing ? "⏸" : "▶"}</button>
        <input type="range" aria-label="Ids in the order of addition" min={0} max={scatter.steps.length} value={count} aria-valuetext={stepWords(scatter, count)} onChange={(event) => setWanted(Number(event.target.value))} />
        {scatter.orders.length > 1 && (
          <label>
            Order{" "}
            <select aria-label="Order of addition" value={scatter.order ?? ""} onChange={(event) => setOrder(event.target.value)}>
              {scatter.orders.map((one) => <option key={one}>{one}</option>)}
            </select>
          </label>
        )}
        <span className="scatter-words" role="status">{stepWords(scatter, count)}</span>
      </div>
      <div className={`scatter-main${runs.length > 1 ? " with-tree" : ""}`}>
        <Drawing scatter={scatter} count={count} explain={explain} />
        {current && runs.length > 1 && <AdditionTree row={current.to} scatter={scatter} runs={runs} current={current} />}
      </div>
      <p className="quiet scatter-sum">
        {scatter.named.toLocaleString("en")} of {scatter.rows.toLocaleString("en")} rows of {scatter.pin} are named by {scatter.total.toLocaleString("en")} ids; rows never named stay grey.
        {scatter.steps.length < scatter.total && ` The ${scatter.steps.length.toLocaleString("en")} ids of the first ${scatter.ends.length} rows are shown.`}
      </p>
    </>
  );
}

function stepWords(scatter: Scatter, count: number): string {
  const step = count > 0 ? scatter.steps[count - 1] : undefined;
  if (!step) return `Before the first of ${scatter.steps.length} ids: move the slider, or press play.`;
  const factor = step.factor === "1" ? "" : `${fractionText(step.factor)}·`;
  const id = step.id === null ? "" : `${idText(get().catalog.find(scatter.op), step.place, step.id)}, `;
  return `${id}${count} of ${scatter.steps.length}: ${factor}${step.pin} row ${step.from} is added to ${scatter.pin} row ${step.to}: ${rowText(step.total, scatter.of_columns)}`;
}

function Drawing({ scatter, count, explain }: { scatter: Scatter; count: number; explain: (row: number) => void }) {
  const [box, { width }] = useSize<HTMLDivElement>();
  const sources = useMemo(() => sourceSlots(scatter), [scatter]);
  const targets = useMemo(() => targetSlots(scatter), [scatter]);
  const progress = useMemo(() => progressAfter(scatter, count), [scatter, count]);
  const place = useMemo(() => ({ sources: placesOf(sources), targets: placesOf(targets) }), [sources, targets]);
  const current = count > 0 ? scatter.steps[count - 1] : undefined;
  const largest = Math.max(0, ...scatter.steps.map((step) => Math.abs(step.weight ?? 0)));
  const height = Math.max(sources.length, targets.length) * ROW + 22;
  const side = Math.min(MOST_SIDE, Math.max(120, width * 0.36));
  const right = Math.max(width - side, side + 60);
  const y = (k: number) => 20 + k * ROW + ROW / 2;
  useEffect(() => {
    if (!current || !box.current) return;
    const top = y(place.targets.get(`${scatter.pin} ${current.to}`) ?? 0);
    const element = box.current;
    if (top < element.scrollTop + 20 || top > element.scrollTop + element.clientHeight - 20) element.scrollTop = top - element.clientHeight / 2;
  }, [current]); // eslint-disable-line
  const path = (step: ScatterStep) => {
    const [from, to] = [y(place.sources.get(`${step.pin} ${step.from}`) ?? 0), y(place.targets.get(`${scatter.pin} ${step.to}`) ?? 0)];
    const middle = (side + right) / 2;
    return `M${side} ${from}C${middle} ${from} ${middle} ${to} ${right} ${to}`;
  };
  const used = new Set(scatter.steps.slice(0, count).map((step) => `${step.pin} ${step.from}`));
  return (
    <div className="scatter-box" ref={box} tabIndex={0} role="region" aria-label="Rows and the rows they are added to">
      {width > 0 && (
        <svg className="scatter" style={{ "--strength": Math.max(0.06, Math.min(0.28, 20 / scatter.steps.length)) } as React.CSSProperties} width={Math.max(width - 16, right + side - 16)} height={height} role="img" aria-label={stepWords(scatter, count)}>
          <text className="scatter-head" x={side} y={13} textAnchor="end">{scatter.sources.map((one) => one.pin).join(", ")}</text>
          <text className="scatter-head" x={right} y={13}>{scatter.pin}</text>
          {scatter.steps.slice(0, count).map((step, k) => k !== count - 1 && <path key={k} className="done" d={path(step)} style={{ strokeWidth: Math.max(1, ribbonWidth(step.weight, largest, 7)) }} />)}
          {current && <path className="current" d={path(current)} style={{ strokeWidth: ribbonWidth(current.weight, largest) }} data-from={current.from} data-to={current.to} />}
          {sources.map((slot, k) => (
            <g key={k} className={`slot source${used.has(`${slot.pin} ${slot.first}`) ? " touched" : slot.named ? " named" : ""}`} transform={`translate(0 ${y(k) - ROW / 2})`}>
              <rect x={40} y={2} width={side - 40} height={ROW - 4} rx={4} />
              <text x={side - 8} y={ROW / 2 + 4} textAnchor="end">{slotText(slot, scatter.sources.length > 1)}</text>
            </g>
          ))}
          {targets.map((slot, k) => {
            const found = slot.named ? progress.get(slot.first) : undefined;
            const isCurrent = current?.to === slot.first && slot.named;
            return (
              <g key={k} className={`slot target${isCurrent ? " current" : found ? " touched" : slot.named ? " named" : " untouched"}`} data-row={slot.first} transform={`translate(${right} ${y(k) - ROW / 2})`} onClick={() => slot.named && explain(slot.first)}>
                <title>{slot.named ? `Row ${slot.first}: ${found ? `${found.done} of ${found.of} ids added` : "nothing added yet"}; click for its sum` : "No id names it"}</title>
                <rect x={0} y={2} width={side - 24} height={ROW - 4} rx={4} />
                {found && <rect className="filled" x={0} y={2} width={((side - 24) * found.done) / found.of} height={ROW - 4} rx={4} />}
                <text x={8} y={ROW / 2 + 4}>{slotText(slot, false)}{found ? ` ${rowText(found.total, scatter.of_columns, 2, 3)}` : ""}</text>
              </g>
            );
          })}
          {current && <Label step={current} x={(side + right) / 2} y={(y(place.sources.get(`${current.pin} ${current.from}`) ?? 0) + y(place.targets.get(`${scatter.pin} ${current.to}`) ?? 0)) / 2} />}
        </svg>
      )}
    </div>
  );
}

function Label({ step, x, y }: { step: ScatterStep; x: number; y: number }) {
  return <text className="scatter-factor" x={x} y={y + 5} textAnchor="middle"><title>{reasonText(step)}</title>{fractionText(step.factor)}</text>;
}

function placesOf(slots: readonly Slot[]): Map<string, number> {
  return new Map(slots.flatMap((slot, k) => (slot.named || slot.first === slot.last ? [[`${slot.pin} ${slot.first}`, k] as const] : [])));
}

function slotText(slot: Slot, withPin: boolean): string {
  const pin = withPin ? `${slot.pin} ` : "";
  return slot.first === slot.last ? `${pin}row ${slot.first}` : `${pin}rows ${slot.first} to ${slot.last}`;
}

const LEVEL = 38;

/** The order of addition of one row as a tree: each box adds up a run of ids, each line carries its sum upwards. */
function AdditionTree({ row, scatter, runs, current }: { row: number; scatter: Scatter; runs: ReturnType<typeof runsOf>; current: ScatterStep }) {
  const [box, { width }] = useSize<HTMLDivElement>();
  const root = treeOf(runs);
  const depth = Math.max(...runs.map((run) => run.path.length));
  const leaves = leavesOf(root);
  const step = Math.max(9, (width - 16) / Math.max(leaves.length, 1));
  const x = (node: TreeNode): number => {
    const inside = leavesOf(node);
    return 8 + step * ((leaves.indexOf(inside[0]!) + leaves.indexOf(inside.at(-1)!)) / 2 + 0.5);
  };
  const y = (level: number) => 26 + level * LEVEL;
  const draw = (node: TreeNode, level: number): React.ReactNode => {
    const inside = leavesOf(node).map((leaf) => leaf.run!);
    const done = inside.reduce((sum, run) => sum + run.done, 0);
    const size = inside.reduce((sum, run) => sum + run.size, 0);
    const isCurrent = node.run !== null && node.path.join(".") === current.path.join(".");
    const wide = Math.min(step - 3, 60);
    const name = `${node.path.length ? `Run ${node.path.map((k) => k + 1).join(".")}` : `Row ${row}`}: ${done} of ${size} ids${node.run?.total ? `, ${rowText(node.run.total, scatter.of_columns)}` : ""}`;
    return (
      <g key={node.path.join(".")} className={`run${isCurrent ? " current" : done === size ? " finished" : done ? " begun" : ""}`}>
        <title>{name}</title>
        {node.children.map((child) => <path key={child.path.join(".")} d={`M${x(child)} ${y(level + 1) - 9}C${x(child)} ${y(level) + 18} ${x(node)} ${y(level + 1) - 18} ${x(node)} ${y(level) + 9}`} />)}
        <rect x={x(node) - wide / 2} y={y(level) - 9} width={wide} height={18} rx={3} />
        <rect className="filled" x={x(node) - wide / 2} y={y(level) - 9} width={(wide * done) / size} height={18} rx={3} />
        {wide > 22 && <text x={x(node)} y={y(level) + 4} textAnchor="middle">{size}</text>}
        {node.children.map((child) => draw(child, level + 1))}
      </g>
    );
  };
  return (
    <div className="addition-tree" ref={box}>
      <p className="quiet">Row {row} is added up in {runs.length} runs; their sums are then added.</p>
      {width > 0 && <svg width={Math.max(width, leaves.length * step + 16)} height={y(depth) + 20} role="img" aria-label={`Tree of additions of row ${row}: ${runs.length} runs`}>{draw(root, 0)}</svg>}
    </div>
  );
}

function leavesOf(node: TreeNode): TreeNode[] {
  const own = node.run ? [node] : [];
  return node.children.length ? [...own, ...node.children.flatMap(leavesOf)] : own;
}
