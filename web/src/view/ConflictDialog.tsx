// Two windows changed one page: which stands, and where the other is.

import { open } from "../state/documents";
import { DialogFrame, closeDialog } from "./DialogFrame";

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
