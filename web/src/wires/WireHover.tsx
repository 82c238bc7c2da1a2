// What a wire carried in the last run, beside the pointer or the wire that has the focus: its type and a small heat map.

import { useEffect, useState } from "react";
import { get, set, useStudio } from "../app/store";
import { wireOf } from "../page/actions";
import { endText } from "../page/page";
import { runInfo } from "../results/results";
import { ResultPicture, useSmallCells } from "../results/ResultPicture";
import { staleReason } from "../results/stale";
import type { Result } from "../transport/protocol";
import { infoText } from "../values/format";
import { MiniTable } from "../values/MiniValue";
import { infoOfEnd } from "./ends";

const PAUSE = 150; // milliseconds, so that nothing flickers while the pointer crosses wires

/** Show the values of a wire at a point of the window. */
export function hoverWire(wire: string, at: readonly [number, number]): void {
  set({ hovered: { wire, at } });
}

export function leaveWire(): void {
  if (get().hovered) set({ hovered: null });
}

export function WireHover() {
  const hovered = useStudio((state) => (state.menu || state.finder || state.drag || state.light ? null : state.hovered));
  const open = useStudio((state) => state.docs[state.active ?? ""]);
  const [shown, setShown] = useState<typeof hovered>(null);
  useEffect(() => {
    if (!hovered) return setShown(null);
    const timer = setTimeout(() => setShown(hovered), PAUSE);
    return () => clearTimeout(timer);
  }, [hovered]);
  useEffect(() => leaveWire, [open?.name]);
  const wire = shown && open && FEATURES.wireHover && wireOf(open.page, shown.wire);
  if (!wire) return null;
  const { from } = wire;
  const found = open.run?.results[from.block]?.[from.pin];
  const item = Array.isArray(found) ? found[from.index ?? 0] : found;
  const info = item?.info ?? runInfo(open, from.block, from.pin, from.index, infoOfEnd(open, from));
  const stale = item ? staleReason(open, from.block, from.pin) : null;
  const [x, y] = shown.at;
  return (
    <div className="tip wire-hover" role="tooltip" style={{ "--x": `${x}px`, "--y": `${y}px` } as React.CSSProperties}>
      <span><b>{endText(from)}</b> <span className="quiet">{infoText(info)}{stale ? " · stale" : ""}</span></span>
      {item ? <Carried key={`${from.block} ${from.pin} ${from.index}`} block={from.block} pin={from.pin} entry={Array.isArray(found) ? (from.index ?? 0) : null} item={item} /> : <span className="quiet">no run has computed it yet</span>}
    </div>
  );
}

function Carried({ item, ...of }: { block: string; pin: string; entry: number | null; item: Result }) {
  const cells = useSmallCells(item);
  return cells ? <MiniTable {...cells} /> : <ResultPicture of={of} item={item} cells={null} />;
}
