// The sum of the row that the trace panel explains, under its block on the canvas.

import { NodeToolbar, Position } from "@xyflow/react";
import { useStudio } from "../app/store";
import { EquationLine } from "./SumPane";
import { ribbonWidth, ribbonsOf } from "./sums";

const ROW = 22;
const MOST = 6;

export function TraceNote() {
  const explained = useStudio((state) => state.explained);
  const active = useStudio((state) => state.active);
  if (!explained || explained.page !== active || explained.sum.kind === "by row") return null;
  const { block, sum } = explained;
  const all = ribbonsOf(sum);
  const ribbons = all.slice(0, MOST);
  const largest = Math.max(0, ...ribbons.map((ribbon) => Math.abs(ribbon.weight ?? 0)));
  const height = Math.max(1, ribbons.length) * ROW;
  return (
    <NodeToolbar nodeId={block} isVisible position={Position.Bottom} className="trace-note" data-testid="trace-note">
      {ribbons.length > 0 && (
        <svg width={300} height={height} role="img" aria-label={`${all.length} rows make ${sum.pin} row ${sum.row}`}>
          {ribbons.map((ribbon, k) => {
            const y = k * ROW + ROW / 2;
            return (
              <g key={k} data-tone={k % 6}>
                <path d={`M92 ${y}C170 ${y} 160 ${height / 2} 216 ${height / 2}`} style={{ strokeWidth: ribbonWidth(ribbon.weight, largest, 12) }} />
                <text x={86} y={y + 4} textAnchor="end">{ribbon.pin} {ribbon.row}</text>
                <text className="factor" x={100} y={y + 4}>{ribbon.label}</text>
              </g>
            );
          })}
          <text x={222} y={height / 2 + 4}>{sum.rows === 1 ? sum.pin : `row ${sum.row}`}</text>
        </svg>
      )}
      {all.length > MOST && <p className="quiet">and {(all.length - MOST).toLocaleString("en")} more rows</p>}
      <EquationLine sum={sum} most={4} />
    </NodeToolbar>
  );
}
