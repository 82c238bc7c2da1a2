// Dialogs about a page: its new name, and a conflict between two windows.

import { useState } from "react";
import { DialogFrame, closeDialog } from "../ui/DialogFrame";
import { open, renamePage } from "./pages";

export function RenameDialog({ page }: { page: string }) {
  const [name, setName] = useState(page);
  const [fault, setFault] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const finish = async () => {
    setBusy(true);
    const why = await renamePage(page, name.trim());
    setBusy(false);
    if (why === null) closeDialog();
    else setFault(why);
  };
  return (
    <DialogFrame title={`Rename ${page}`}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void finish();
        }}
      >
        <label className="field">
          Name of the page
          <input
            data-first
            value={name}
            aria-invalid={fault !== null}
            aria-describedby={fault ? "rename-fault" : undefined}
            onFocus={(event) => event.target.select()}
            onChange={(event) => {
              setName(event.target.value);
              setFault(null);
            }}
          />
        </label>
        {fault && <p className="fault" role="alert" id="rename-fault">{fault}</p>}
        <div className="dialog-foot">
          <button type="button" onClick={closeDialog}>Leave it</button>
          <button className="primary" disabled={busy || !name.trim()}>Rename</button>
        </div>
      </form>
    </DialogFrame>
  );
}

export function ConflictDialog({ name, kept }: { name: string; kept: string }) {
  const openMine = () => {
    closeDialog();
    void open(kept);
  };
  return (
    <DialogFrame title="Two windows changed this page">
      <p>Another window saved <b>{name}</b> before this one did. Its page stands and is shown now.</p>
      <p>What you did here is not lost: it is a page of its own, <b>{kept}</b>.</p>
      <div className="dialog-foot">
        <button onClick={closeDialog}>Stay with {name}</button>
        <button className="primary" data-first onClick={openMine}>Open mine</button>
      </div>
    </DialogFrame>
  );
}
