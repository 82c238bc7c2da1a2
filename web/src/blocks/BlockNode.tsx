// One block on the canvas: name, pins with their types, typed values, last results as small pictures, and their cost.

import type { NodeProps } from "@xyflow/react";
import { Handle, Position } from "@xyflow/react";
import { Play, Repeat } from "lucide-react";
import { memo, useLayoutEffect, useMemo, useRef } from "react";
import { set, useStudio } from "../app/store";
import { sizeOf } from "../canvas/layout";
import { inHandle, outHandle } from "../canvas/nodes";
import { canvasView } from "../canvas/view";
import { FlipButton } from "../gradients/FlipButton";
import { FixButtons } from "../messages/fixes";
import { takesFocus } from "../page/actions";
import { EMPTY, blockOf, endsAt, entryText, importedName, isNumbered, pinPath, wiredOutputs } from "../page/page";
import { familyOf } from "../palette/families";
import { ResultPicture, useSmallCells } from "../results/ResultPicture";
import { runInfo } from "../results/results";
import { staleReason } from "../results/stale";
import { isFailureEdited, run } from "../run/runs";
import type { Block, Info, OpRecord, Pin, Result } from "../transport/protocol";
import { bytesText, infoText, isKnown, markedText, secondsText } from "../values/format";
import { InlineLiteral } from "../values/InlineLiteral";
import { takesLiteral } from "../values/literals";
import type { MiniCells } from "../values/mini";
import { cellsOfValue, shortenMiddle } from "../values/mini";
import type { Role } from "./pins";
import { OpName, WORDS } from "../ui/MiddleText";
import { SHAPES, isMissing, lacksValue, pinText, roleOf } from "./pins";

const MOST_LETTERS = 36; // of a name on a block

function useBlock(id: string): Block | undefined {
  return useStudio((state) => {
    const open = state.docs[state.active ?? ""];
    return open && blockOf(open.page, id);
  });
}

export const BlockNode = memo(function BlockNode(props: NodeProps) {
  const light = useStudio((state) => state.light);
  // Blocks of two pages may have the same name; text being typed into one must not appear in the other.
  const page = useStudio((state) => state.active);
  return light ? <DistantBlock {...props} /> : <FullBlock key={page} {...props} />;
});

/** The name that a user gave a block: neither made from the op's, nor made up by the old tool. */
function ownName(id: string, record: OpRecord | undefined): string | undefined {
  return isNumbered(id) || id.replace(/_\d+$/, "") === record?.snake_name ? undefined : (importedName(id) ?? id);
}


const [LARGEST, LEAST_FAR] = [46, 22]; // pixels

/** The size of a name that fills a block when the page is zoomed out: each word fits, and a line for each of them. */
function farSize(name: string, width = 240, height = 110): React.CSSProperties {
  const words = name.split(WORDS);
  const across = (width - 26) / (0.69 * Math.max(...words.map((word) => word.length)));
  const down = (height - 12) / (1.08 * words.length);
  return { "--far": `${Math.round(Math.max(LEAST_FAR, Math.min(LARGEST, across, down)))}px` } as React.CSSProperties;
}

/** A block that is too small for its text: the colour of its family and a large name. */
function DistantBlock({ id, selected, data }: NodeProps) {
  const op = String(data["op"]);
  const catalog = useStudio((state) => state.catalog);
  const record = catalog.find(op);
  const size = useMemo(() => sizeOf(record), [record]);
  const state = useStudio((studio) => {
    const open = studio.docs[studio.active ?? ""];
    const fault = open?.checked.errors[id];
    if (!open || !fault) return open?.checked.waiting.includes(id) ? "waiting" : "";
    return lacksValue(blockOf(open.page, id), record, fault.pin) ? "needs" : "faulty";
  });
  return (
    <div className={`block light${selected ? " selected" : ""} ${state}`} style={{ ...size, ...farSize(ownName(id, record) ?? op, size.width, size.height) }} data-block={id} data-op={op} data-family={familyOf(record).name}>
      <span className="block-op"><OpName op={ownName(id, record) ?? op} /></span>
    </div>
  );
}

function FullBlock({ id, selected, width, height }: NodeProps) {
  const block = useBlock(id);
  const record = useStudio((state) => state.catalog.find(block?.op ?? ""));
  const known = useStudio((state) => state.docs[state.active ?? ""]?.checked.blocks[id]);
  const fault = useStudio((state) => state.docs[state.active ?? ""]?.checked.errors[id]);
  const failed = useStudio((state) => {
    const open = state.docs[state.active ?? ""];
    // Where the block's computation changed since the run, the error may be fixed; the next run decides.
    return open?.run?.error?.block === id && !isFailureEdited(open) ? open.run.error : undefined;
  });
  const wired = useStudio((state) => wiredOutputs(state.docs[state.active ?? ""]?.page ?? EMPTY, id));
  const begun = useMemo(() => JSON.parse(wired) as Record<string, number>, [wired]);
  const waiting = useStudio((state) => state.docs[state.active ?? ""]?.checked.waiting.includes(id) ?? false);
  const ghost = useStudio((state) => state.docs[state.active ?? ""]?.checked.ghosts?.includes(id) ?? false);
  const left = useStudio((state) => state.docs[state.active ?? ""]?.checked.partial?.[id]);
  const page = useStudio((state) => state.active);
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (!takesFocus(id)) return;
    box.current?.closest<HTMLElement>(".react-flow__node")?.focus({ preventScroll: true });
    canvasView.reveal(id);
  }, [id]);
  if (!block) return null;
  const error = FEATURES.errors ? (fault ?? failed) : undefined;
  const needs = error !== undefined && error === fault && lacksValue(block, record, error.pin);
  const classes = ["block", selected && "selected", ghost ? "ghost" : error && (needs ? "needs" : "faulty"), waiting && "waiting", record?.runs && "session"];
  const family = familyOf(record);
  const Icon = family.icon;
  return (
    <div ref={box} className={classes.filter(Boolean).join(" ")} style={farSize(ownName(id, record) ?? block.op, width, height)} data-block={id} data-op={block.op} data-family={family.name}>
      <span className="block-id" title={id}>{shortenMiddle(id, MOST_LETTERS)}</span>
      <div className="block-head">
        <Icon className="block-icon" size={14} aria-hidden="true" />
        <span className="block-op" data-name={ownName(id, record)?.split(WORDS).join("\u200b")} title={block.op}><span><OpName op={shortenMiddle(block.op, MOST_LETTERS)} /></span></span>
        <FlipButton block={id} outputs={known?.outputs} />
        {error && !needs && (
          <button className="block-error nodrag" title={error.message} aria-label={`Error: ${error.message}`} onClick={() => set({ bottom: "messages", bottomOpen: true })}>
            !
          </button>
        )}
      </div>
      <div className="pins">
        <div className="pins-in">
          {(record?.inputs ?? unknownPins(block)).map((pin) => (
            <InputPin key={pin.name} block={block} pin={pin} info={known?.inputs[pin.name]} faulty={!needs && error?.pin === pin.name} needs={needs} />
          ))}
        </div>
        <div className="pins-out">
          {(record?.outputs ?? Object.keys(begun).map(unknownPin)).map((pin) => (
            <OutputPin key={pin.name} block={id} pin={pin} info={known?.outputs[pin.name]} wired={begun[pin.name]} />
          ))}
        </div>
      </div>
      {record?.runs && <SessionButtons id={id} />}
      {ghost && <GhostAttributes block={block} />}
      {error && <div className="block-message" role={needs ? "status" : "alert"}>{error.message}</div>}
      {left && <div className="block-message quiet">Runs without {left.join(", ")}</div>}
      {error && <FixButtons fixes={error.fixes} page={page} />}
      <Results id={id} />
    </div>
  );
}

/** Pins of a block that is not in the catalogue: those its wires and values name. */
function unknownPins(block: Block): Pin[] {
  const names = [...Object.keys(block.in ?? {}), ...Object.keys(block.values ?? {})];
  return names.map(unknownPin);
}

/** Attributes of a block that the catalog lacks: nothing else shows them. */
function GhostAttributes({ block }: { block: Block }) {
  const attributes = Object.entries(block.attrs ?? {});
  if (!attributes.length) return null;
  return (
    <dl className="ghost-attributes">
      {attributes.map(([name, value]) => (
        <div key={name}><dt>{name}</dt><dd>{typeof value === "string" ? value : JSON.stringify(value)}</dd></div>
      ))}
    </dl>
  );
}

function unknownPin(name: string): Pin {
  return { name, type: "any", host: false, many: false, ref: false, optional: false, role: "values", dtypes: [] };
}

/** Whether this pin accepts the wire being drawn: null if so, a reason if not, undefined if no wire is being drawn. */
function useTakes(key: string, side: "from" | "to"): string | null | undefined {
  return useStudio((state) => {
    const drag = state.drag;
    return drag?.takes && drag.side === side ? (drag.takes[key] === undefined ? "" : drag.takes[key]) : undefined;
  });
}

function pinClass(role: Role, many: boolean, takes: string | null | undefined): string {
  const parts = ["pin"];
  if (FEATURES.pinRoles) parts.push(`role-${role}`, `shape-${SHAPES[role]}`);
  if (many) parts.push("many");
  if (takes === null) parts.push("takes");
  else if (takes !== undefined && FEATURES.rejections) parts.push("refuses");
  return parts.join(" ");
}

interface InputProps {
  block: Block;
  pin: Pin;
  info: Info | Info[] | undefined;
  faulty: boolean;
  needs: boolean; // the block lacks values of pins that must have one
}

function InputPin({ block, pin, info, faulty, needs }: InputProps) {
  const takes = useTakes(pinPath(block.id, pin.name), "from");
  const wired = endsAt(block, pin.name);
  const role = roleOf(pin);
  const openTable = (event: React.MouseEvent) => {
    if (!FEATURES.spreadsheet || wired.length || !takesLiteral(pin)) return; // the block's own double click opens all its values
    event.stopPropagation();
    set({ dialog: { kind: "value", block: block.id, pin: pin.name } });
  };
  const missing = needs && isMissing(block, pin);
  const title = takes && FEATURES.rejections ? `${pin.name}: ${takes}` : pinText(pin);
  return (
    <div className={`pin-row${faulty ? " faulty" : ""}${missing ? " missing" : ""}`} title={title} data-pin={pin.name} onDoubleClick={openTable} data-takes={takes === undefined ? undefined : takes === null ? "yes" : takes}>
      <Handle type="target" id={inHandle(pin.name)} position={Position.Left} className={pinClass(role, pin.many, takes)} role="img" aria-label={`Input ${pinText(pin)}`} />
      <span className={`pin-name${pin.optional ? " optional" : ""}`}>{pin.name}</span>
      {wired.length ? (
        <span className={`pin-info${isKnown(info) ? "" : " open"}`}>{FEATURES.wireShapes ? (pin.many && wired.length > 1 ? `${wired.length} wires` : markedText(info)) : ""}</span>
      ) : (
        <InlineLiteral block={block} pin={pin} />
      )}
    </div>
  );
}

/** `wired` entries are shown even if the list became shorter or unknown: their wires need an end. */
function OutputPin({ block, pin, info, wired }: { block: string; pin: Pin; info: Info | Info[] | undefined; wired: number | undefined }) {
  const entries: (Info | undefined)[] = Array.isArray(info) ? [...info] : [];
  while (entries.length < (wired ?? 0)) entries.push(undefined);
  return (
    <>
      <OutputHandle block={block} pin={pin} index={null} info={entries.length > 1 ? undefined : info} wired={wired !== undefined} />
      {entries.map((entry, k) => <OutputHandle key={k} block={block} pin={pin} index={k} info={entry} wired />)}
    </>
  );
}

function OutputHandle({ block, pin, index, info: checked, wired }: { block: string; pin: Pin; index: number | null; info: Info | Info[] | undefined; wired: boolean }) {
  const label = entryText(pin.name, index);
  const info = useStudio((state) => {
    const open = state.docs[state.active ?? ""];
    return open ? runInfo(open, block, pin.name, index, checked) : checked;
  });
  const takes = useTakes(pinPath(block, label), "to");
  const role = roleOf(pin);
  return (
    <div className={`pin-row out${wired ? " wired" : ""}`} title={takes && FEATURES.rejections ? `${label}: ${takes}` : `${label} ${infoText(info)}`} data-out={label} data-takes={takes === undefined ? undefined : takes === null ? "yes" : takes}>
      <span className={`pin-info${isKnown(info) ? "" : " open"}`}>{FEATURES.wireShapes ? markedText(info) : ""}</span>
      <span className="pin-name">{index === null ? pin.name : `[${index}]`}</span>
      <Handle type="source" id={outHandle(pin.name, index)} position={Position.Right} className={pinClass(role, pin.many && index === null, takes)} role="img" aria-label={`Output ${pinText(pin)}`} />
    </div>
  );
}

function SessionButtons({ id }: { id: string }) {
  return (
    <div className="session-buttons nodrag">
      <button onClick={() => void run("once", [id])} disabled={!FEATURES.run} title={`Run ${id} once`}><Play size={11} aria-hidden="true" /> Run</button>
      <button onClick={() => void run("steps", [id])} disabled={!FEATURES.run} title={`Run ${id} N steps`}>Run N</button>
      <button onClick={() => void run("flat", [id])} disabled={!FEATURES.run} aria-label={`Run ${id} continuously`} title={`Run ${id} continuously`}><Repeat size={12} aria-hidden="true" /></button>
    </div>
  );
}

function Results({ id }: { id: string }) {
  const results = useStudio((state) => state.docs[state.active ?? ""]?.run?.results[id]);
  const cost = useStudio((state) => state.docs[state.active ?? ""]?.run?.costs[id]);
  const outline = useStudio((state) => state.traced?.block === id);
  if (!results && !cost) return null;
  return (
    <div className={`block-results${outline ? " traced" : ""}`}>
      {FEATURES.results &&
        Object.entries(results ?? {}).map(([pin, result]) => <ResultChip key={pin} block={id} pin={pin} result={result} />)}
      {FEATURES.costs && cost && <div className="block-cost" title="time and memory of the last run">{cost.seconds > 0 ? `${secondsText(cost.seconds)} · ` : ""}{bytesText(cost.bytes)}</div>}
    </div>
  );
}

function ResultChip({ block, pin, result }: { block: string; pin: string; result: Result | Result[] }) {
  const stale = useStudio((state) => {
    const open = state.docs[state.active ?? ""];
    return open ? staleReason(open, block, pin) : null;
  });
  const items = Array.isArray(result) ? result : [result];
  return items.map((item, k) => <ResultItem key={k} block={block} pin={pin} entry={Array.isArray(result) ? k : null} item={item} stale={stale} />);
}

/** Whether a result shows the same numbers as a typed value of its block. */
function useRepeats(id: string, cells: MiniCells | null): boolean {
  const values = useStudio((state) => blockOf(state.docs[state.active ?? ""]?.page ?? EMPTY, id)?.values);
  return useMemo(() => {
    const shown = JSON.stringify(cells?.numbers);
    return cells !== null && Object.values(values ?? {}).some((value) => JSON.stringify(cellsOfValue(value)?.numbers) === shown);
  }, [values, cells]);
}

function ResultItem({ block, pin, entry, item, stale }: { block: string; pin: string; entry: number | null; item: Result; stale: string | null }) {
  const label = `result_${entryText(pin, entry)}`;
  const cells = useSmallCells(item);
  // What a Variable holds may change in the next run: its block has the same size before and after.
  const repeats = useRepeats(block, item.steady && cells && cells.cells.length > 1 ? cells : null);
  const show = () => set({ shown: { block, pin, entry }, bottom: "results", bottomOpen: true });
  return (
    <button className={`result nodrag${stale ? " stale" : ""}`} onClick={show} title={`${label} ${item.info.text}, run ${item.run}${stale ? `; ${stale}` : ""}`}>
      <span className="result-line">
        <span className="result-name">{label}{stale ? " stale" : ""}</span> <span className="result-type">{item.info.text}</span>
      </span>
      {!repeats && <ResultPicture of={{ block, pin, entry }} item={item} cells={cells} />}
    </button>
  );
}
