// Text notes and frames: on the canvas, and the dialog that edits their text.

import type { NodeProps } from "@xyflow/react";
import { NodeResizer } from "@xyflow/react";
import { memo, useState } from "react";
import { set, useDoc } from "../app/store";
import { noteNumber } from "../canvas/nodes";
import { change, select } from "../page/actions";
import * as edit from "../page/edit";
import { notesOf } from "../page/page";
import { CloseDialog, DialogFrame, closeDialog } from "../ui/DialogFrame";

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

export function NoteDialog({ k }: { k: number }) {
  const open = useDoc();
  const notes = open ? notesOf(open.page) : [];
  const [note] = useState(notes[k]);
  const [text, setText] = useState(note?.text ?? "");
  if (!open || !note) return <CloseDialog />;
  const what = note.size ? "frame" : "note";
  // Another window may have removed this note or earlier ones, so its number may be wrong.
  const place = [k, ...notes.keys()].find((i) => notes[i]?.text === note.text && Boolean(notes[i].size) === Boolean(note.size));
  const finish = () => {
    closeDialog();
    if (place === undefined) change(`add a ${what}`, (page) => edit.addNote(page, { ...note, text }));
    else if (text !== note.text) change(`write a ${what}`, (page) => edit.changeNote(page, place, { text }));
  };
  const remove = () => {
    closeDialog();
    select([]);
    if (place !== undefined) change(`delete a ${what}`, (page) => edit.remove(page, new Set(), new Set([place])));
  };
  return (
    <DialogFrame title={note.size ? "Frame" : "Note"}>
      <label className="field">
        Text
        <textarea
          data-first
          rows={note.size ? 2 : 6}
          value={text}
          onFocus={(event) => event.target.select()}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
            event.preventDefault();
            finish();
          }}
        />
        <span className="quiet">Ctrl+Enter takes it.</span>
      </label>
      <div className="dialog-foot">
        <button className="foot-left" onClick={remove}>Delete the {what}</button>
        <button onClick={closeDialog}>Cancel</button>
        <button className="primary" onClick={finish}>Take it</button>
      </div>
    </DialogFrame>
  );
}
