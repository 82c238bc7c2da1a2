// Dialogs about a page: its new name, and a conflict between two windows.

import { useState } from "react";
import type { Merge } from "../app/store";
import type { ConflictField } from "../transport/protocol";
import { DialogFrame, closeDialog } from "../ui/DialogFrame";
import { saveChoices } from "./autosave";
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
          <button type="button" onClick={closeDialog}>Cancel</button>
          <button className="primary" disabled={busy || !name.trim()}>Rename</button>
        </div>
      </form>
    </DialogFrame>
  );
}

/** What a field of a conflict is called in the dialog. */
function fieldName({ block, kind, name }: ConflictField): string {
  if (kind === "note") return "a note";
  if (kind === "block" || kind === "removed") return `block ${block}`;
  if (kind === "at") return `${block}: position`;
  return kind === "hidden" ? `${block}.${name}: wires shown` : `${block}.${name}`;
}

function Choices({ name, kept, merge }: { name: string; kept: string; merge: Merge }) {
  const [mine, setMine] = useState<ReadonlySet<string>>(new Set());
  const [busy, setBusy] = useState(false);
  const choose = (key: string, isMine: boolean) => setMine((before) => new Set(isMine ? [...before, key] : [...before].filter((one) => one !== key)));
  const finish = async () => {
    setBusy(true);
    closeDialog();
    const keys = merge.fields.map((field) => field.key);
    await saveChoices(name, kept, merge, keys.filter((key) => mine.has(key)), keys.filter((key) => !mine.has(key)));
  };
  return (
    <DialogFrame title="Two windows changed this page" wide>
      <p>Another window saved <b>{name}</b> before this one did. Both changed these fields; everything else is merged.</p>
      <table aria-label="Fields that both windows changed">
        <thead><tr><th scope="col">Field</th><th scope="col">Theirs</th><th scope="col">Mine</th></tr></thead>
        <tbody>
          {merge.fields.map((field) => (
            <tr key={field.key}>
              <th scope="row">{fieldName(field)}</th>
              {(["theirs", "mine"] as const).map((side) => (
                <td key={side}>
                  <label>
                    <input type="radio" name={field.key} checked={mine.has(field.key) === (side === "mine")} onChange={() => choose(field.key, side === "mine")} aria-label={`${fieldName(field)}: ${side}`} />{" "}
                    {field[side]}
                  </label>
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      <p>Until you merge, your page is kept as <b>{kept}</b>.</p>
      <div className="dialog-foot">
        <button onClick={closeDialog}>Stay with theirs</button>
        <button className="primary" data-first disabled={busy} onClick={() => void finish()}>Merge</button>
      </div>
    </DialogFrame>
  );
}

export function ConflictDialog({ name, kept, merge }: { name: string; kept: string; merge?: Merge | undefined }) {
  if (merge) return <Choices name={name} kept={kept} merge={merge} />;
  return <CopyDialog name={name} kept={kept} />;
}

function CopyDialog({ name, kept }: { name: string; kept: string }) {
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
