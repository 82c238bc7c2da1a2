// One wire, labelled with dtype and shape. Unknown sizes are marked; hidden wires are thin dashes.

import type { EdgeProps } from "@xyflow/react";
import { BaseEdge, getSmoothStepPath } from "@xyflow/react";
import { memo } from "react";
import { useStudio } from "../app/store";
import type { End } from "../page/page";
import { isKnown, markedText } from "../values/format";

const ROOM = 80; // about half a block

export const WireEdge = memo(function WireEdge(props: EdgeProps) {
  const { sourceX, sourceY, targetX, targetY, sourcePosition, targetPosition, selected } = props;
  const { from, hidden, role } = props.data as { from: End; hidden: boolean; role: string };
  // A wire that leads back would run hidden behind the blocks: route it below them.
  const round = sourceX > targetX && Math.abs(sourceY - targetY) < ROOM ? { centerY: Math.max(sourceY, targetY) + ROOM } : {};
  const [path, x, y] = getSmoothStepPath({ ...round, sourceX, sourceY, targetX, targetY, sourcePosition, targetPosition, borderRadius: 8 });
  const info = useStudio((state) => {
    const found = state.docs[state.active ?? ""]?.checked.blocks[from.block]?.outputs[from.pin];
    return Array.isArray(found) && from.index !== null ? found[from.index] : found;
  });
  const hides = FEATURES.hiddenWires && hidden && !selected;
  return (
    <g className={`wire wire-${role}${hides ? " hidden" : ""}${selected ? " selected" : ""}`}>
      <BaseEdge path={path} interactionWidth={16} />
      {FEATURES.wireShapes && !hides && (
        <text className={`wire-text${isKnown(info) ? "" : " open"}`} x={x} y={y - 5} textAnchor="middle">
          {markedText(info)}
        </text>
      )}
    </g>
  );
});
