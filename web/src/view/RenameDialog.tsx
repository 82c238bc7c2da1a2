// Another name for a page. Whether it can have it, the server says.

import { useState } from "react";
import { renamePage } from "../state/documents";
import { DialogFrame, closeDialog } from "./DialogFrame";

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
