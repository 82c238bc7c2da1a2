// The text of a note, or the title of a frame.

import { useState } from "react";
import * as edit from "../model/edit";
import { notesOf } from "../model/page";
import { change, select } from "../state/editing";
import { useDoc } from "../state/store";
import { DialogFrame, Gone, closeDialog } from "./DialogFrame";

export function NoteDialog({ k }: { k: number }) {
  const open = useDoc();
  const note = open ? notesOf(open.page)[k] : undefined;
  const [text, setText] = useState(note?.text ?? "");
  if (!note) return <Gone />;
  const what = note.size ? "frame" : "note";
  const finish = () => {
    closeDialog();
    if (text !== note.text) change(`write a ${what}`, (page) => edit.changeNote(page, k, { text }));
  };
  const remove = () => {
    closeDialog();
    select([]);
    change(`delete a ${what}`, (page) => edit.remove(page, new Set(), new Set([k])));
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
        <button onClick={closeDialog}>Leave it</button>
        <button className="primary" onClick={finish}>Take it</button>
      </div>
    </DialogFrame>
  );
}
