// Snapshots of a page's Variables: take one, or restore one.

import { useEffect, useState } from "react";
import { useDoc } from "../app/store";
import type { Snapshot } from "../transport/protocol";
import { DialogFrame, closeDialog } from "../ui/DialogFrame";
import { restore, snapshot, snapshots } from "./runs";

export function SnapshotsDialog() {
  const open = useDoc();
  const [found, setFound] = useState<Snapshot[] | null>(null);
  const [label, setLabel] = useState("");
  useEffect(() => void snapshots().then(setFound), []);
  if (!FEATURES.snapshots || !open) return null;
  const never = !open.run || open.run.run === 0;
  const take = async () => {
    await snapshot(label.trim());
    setLabel("");
    setFound(await snapshots());
  };
  const goBack = async (id: string) => {
    if (await restore(id)) closeDialog();
  };
  return (
    <DialogFrame title={`Snapshots of ${open.name}`}>
      <form
        className="snapshot-form"
        onSubmit={(event) => {
          event.preventDefault();
          void take();
        }}
      >
        <input aria-label="Label of the snapshot" placeholder={`run ${open.run?.run ?? 0}`} maxLength={200} value={label} onChange={(event) => setLabel(event.target.value)} />
        <button className="primary" disabled={never}>Take a snapshot</button>
      </form>
      {never && <p className="quiet">The page has not been run: there are no Variables to keep yet.</p>}
      {found !== null && !found.length && <p className="quiet">No snapshot has been taken.</p>}
      {found !== null && found.length > 0 && (
        <table className="snapshots" aria-label="Snapshots">
          <thead>
            <tr><th scope="col">Label</th><th scope="col">Run</th><th scope="col">Taken</th><th scope="col"><span className="unseen">Restore</span></th></tr>
          </thead>
          <tbody>
            {[...found].reverse().map((one) => (
              <tr key={one.id} data-snapshot={one.id}>
                <th scope="row">{one.label}</th>
                <td>{one.run}</td>
                <td>{new Date(one.when * 1000).toLocaleString()}</td>
                <td><button aria-label={`Restore ${one.label}`} onClick={() => void goBack(one.id)}>Restore</button></td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <p className="quiet">Restoring ends a run in progress. Variables and random numbers go on from where they were.</p>
    </DialogFrame>
  );
}
