// One wire, in the colour of what it carries, labelled with dtype and shape. Unknown sizes are marked; hidden wires are
// thin dashes.

import type { EdgeProps } from "@xyflow/react";
import { BaseEdge, getSmoothStepPath } from "@xyflow/react";
import { memo } from "react";
import { useStudio } from "../app/store";
import type { End } from "../page/page";
import { runInfo } from "../results/results";
import type { Info } from "../transport/protocol";
import { isKnown, markedText } from "../values/format";

const HALF_BLOCK = 80;
const LANE = 9; // pixels between two wires that run side by side
const FIRST_LANE = 26; // from the target

export interface WireData extends Record<string, unknown> {
  from: End;
  hidden: boolean;
  role: string;
  lane: number; // of the vertical part, counted from the target
}

export const WireEdge = memo(function WireEdge(props: EdgeProps) {
  const { sourceX, sourceY, targetX, targetY, sourcePosition, targetPosition, selected } = props;
  const { from, hidden, role, lane } = props.data as WireData;
  const [path] = getSmoothStepPath({ ...bend(sourceX, sourceY, targetX, targetY, lane), sourceX, sourceY, targetX, targetY, sourcePosition, targetPosition, borderRadius: 8 });
  const info = useStudio((state) => {
    const open = state.docs[state.active ?? ""];
    const outputs = open?.checked.blocks[from.block]?.outputs[from.pin];
    const found: Info | Info[] | undefined = Array.isArray(outputs) && from.index !== null ? outputs[from.index] : outputs;
    return open ? runInfo(open, from.block, from.pin, from.index, found) : found;
  });
  const hides = FEATURES.hiddenWires && hidden && !selected;
  return (
    <g className={`wire wire-${role}${hides ? " hidden" : ""}${selected ? " selected" : ""}`}>
      <BaseEdge path={path} interactionWidth={16} />
      {FEATURES.wireShapes && !hides && (
        <text className={`wire-text${isKnown(info) ? "" : " open"}`} x={sourceX + 10} y={sourceY - 5}>
          {markedText(info)}
        </text>
      )}
    </g>
  );
});

/** Where a wire bends: in its own lane before the target, or below the blocks if it leads back. */
function bend(sourceX: number, sourceY: number, targetX: number, targetY: number, lane: number): { centerX?: number; centerY?: number } {
  if (sourceX > targetX) return Math.abs(sourceY - targetY) < HALF_BLOCK ? { centerY: Math.max(sourceY, targetY) + HALF_BLOCK } : {};
  const wanted = targetX - FIRST_LANE - lane * LANE;
  return { centerX: Math.max(sourceX + 14, Math.min(wanted, targetX - 14)) };
}
