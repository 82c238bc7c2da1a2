// The sum of the row that the trace panel explains, beside its block on the canvas.

import { useStore } from "@xyflow/react";
import { useMemo } from "react";
import type { StudioState } from "../app/store";
import { useStudio } from "../app/store";
import type { Box } from "../canvas/layout";
import { LABEL, placeCard } from "../canvas/layout";
import { useSize } from "../ui/useSize";
import { EquationLine } from "./SumPane";
import { ribbonWidth, ribbonsOf } from "./sums";

const ROW = 22;
const MOST = 6;

export function TraceNote() {
  const explained = useStudio((state) => state.explained);
  const active = useStudio((state) => state.active);
  if (!explained || explained.page !== active || explained.sum.kind === "by row") return null;
  return <Card {...explained} />;
}

function Card({ block, sum, stale }: NonNullable<StudioState["explained"]>) {
  const [box, size] = useSize<HTMLDivElement>();
  // As text, so that the card is rendered again only when it moves.
  const place = useStore(({ nodeLookup, transform: [left, top, zoom], width, height, domNode }) => {
    const boxes = [...nodeLookup.values()].map(({ id, measured, internals: { positionAbsolute: at } }): [string, Box] => [
      id,
      // with the block's name above it
      { x: left + at.x * zoom, y: top + (at.y - LABEL) * zoom, width: (measured.width ?? 0) * zoom, height: ((measured.height ?? 0) + LABEL) * zoom },
    ]);
    const tools = domNode?.querySelector<HTMLElement>(".canvas-tools");
    const free = { x: 0, y: 0, width, height: height - (tools ? tools.offsetHeight + 10 : 0) };
    const own = boxes.find(([id]) => id === block)?.[1];
    const found = own && size.height ? placeCard(free, size, own, boxes.filter(([id]) => id !== block).map(([, other]) => other)) : null;
    return found && `translate(${found[0]}px, ${found[1]}px)`;
  });
  const all = useMemo(() => ribbonsOf(sum), [sum]);
  const ribbons = all.slice(0, MOST);
  const largest = Math.max(0, ...ribbons.map((ribbon) => Math.abs(ribbon.weight ?? 0)));
  const height = Math.max(1, ribbons.length) * ROW;
  return (
    <div ref={box} className={`trace-note${stale ? " stale" : ""}`} style={place ? { transform: place } : { visibility: "hidden" }} data-testid="trace-note">
      {ribbons.length > 0 && (
        <svg width={300} height={height} role="img" aria-label={`${all.length} rows make ${sum.pin} row ${sum.row}`}>
          {ribbons.map((ribbon, k) => {
            const y = k * ROW + ROW / 2;
            return (
              <g key={k} data-tone={k % 6}>
                <path d={`M92 ${y}C170 ${y} 160 ${height / 2} 216 ${height / 2}`} style={{ strokeWidth: ribbonWidth(ribbon.weight, largest, 12) }} />
                <text x={86} y={y + 4} textAnchor="end">{ribbon.pin} {ribbon.row}</text>
                <text className="factor" x={100} y={y + 4}><title>{ribbon.reason}</title>{ribbon.label}</text>
              </g>
            );
          })}
          <text x={222} y={height / 2 + 4}>{sum.rows === 1 ? sum.pin : `row ${sum.row}`}</text>
        </svg>
      )}
      {all.length > MOST && <p className="quiet">and {(all.length - MOST).toLocaleString("en")} more rows</p>}
      <EquationLine sum={sum} most={4} />
      {stale && <p className="quiet">stale: of an earlier run</p>}
    </div>
  );
}
