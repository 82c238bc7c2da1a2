// Text on the page, or a frame round blocks with its title.

import { NodeResizer } from "@xyflow/react";
import type { NodeProps } from "@xyflow/react";
import { memo } from "react";
import * as edit from "../model/edit";
import { change } from "../state/editing";
import { set } from "../state/store";
import { noteNumber } from "./drawing";

export const NoteNode = memo(function NoteNode({ id, data, selected }: NodeProps) {
  const { text, framed } = data as { text: string; framed: boolean };
  const k = noteNumber(id)!;
  if (framed ? !FEATURES.frames : !FEATURES.notes) return null;
  const rewrite = () => set({ dialog: { kind: "note", k } });
  return (
    <div className={`note${framed ? " frame" : ""}${selected ? " selected" : ""}`} onDoubleClick={rewrite} data-note={k}>
      {framed && (
        <NodeResizer
          isVisible={selected ?? false}
          minWidth={80}
          minHeight={50}
          onResizeEnd={(_, box) => change("resize a frame", (page) => edit.changeNote(page, k, { at: [box.x, box.y], size: [box.width, box.height] }))}
        />
      )}
      <span className="note-text">{text}</span>
    </div>
  );
});
