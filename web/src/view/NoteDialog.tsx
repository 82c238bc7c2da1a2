// The text of a note, or the title of a frame.

import { useState } from "react";
import * as edit from "../model/edit";
import { notesOf } from "../model/page";
import { change, select } from "../state/editing";
import { useDoc } from "../state/store";
import { DialogFrame, Gone, closeDialog } from "./DialogFrame";

export function NoteDialog({ k }: { k: number }) {
  const open = useDoc();
  const notes = open ? notesOf(open.page) : [];
  const [note] = useState(notes[k]);
  const [text, setText] = useState(note?.text ?? "");
  if (!open || !note) return <Gone />;
  const what = note.size ? "frame" : "note";
  // Another window may have taken notes away, this one or those before it: its number says nothing then.
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
        <button onClick={closeDialog}>Leave it</button>
        <button className="primary" onClick={finish}>Take it</button>
      </div>
    </DialogFrame>
  );
}
