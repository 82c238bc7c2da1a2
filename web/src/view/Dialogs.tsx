// Which dialog is open.

import { useStudio } from "../state/store";
import { CommandMenu } from "./CommandMenu";
import { ConflictDialog } from "./ConflictDialog";
import { FlipDialog } from "./FlipDialog";
import { HelpDialog } from "./HelpDialog";
import { KeysDialog } from "./KeysDialog";
import { NoteDialog } from "./NoteDialog";
import { RenameDialog } from "./RenameDialog";
import { SnapshotsDialog } from "./SnapshotsDialog";
import { WireDialog } from "./WireDialog";
import { ExportDialog } from "./out/ExportDialog";
import { ImportDialog } from "./out/ImportDialog";
import { SparseDialog } from "./values/SparseDialog";
import { ValueDialog } from "./values/ValueDialog";

export function Dialogs() {
  const dialog = useStudio((state) => state.dialog);
  if (!dialog) return null;
  switch (dialog.kind) {
    case "commands":
      return <CommandMenu />;
    case "wire":
      return <WireDialog block={dialog.block} />;
    case "value":
      return <ValueDialog block={dialog.block} pin={dialog.pin} />;
    case "sparse":
      return <SparseDialog block={dialog.block} />;
    case "flip":
      return <FlipDialog />;
    case "export":
      return <ExportDialog />;
    case "import":
      return <ImportDialog name={dialog.name} report={dialog.report} page={dialog.page} />;
    case "conflict":
      return <ConflictDialog name={dialog.name} kept={dialog.kept} />;
    case "snapshots":
      return <SnapshotsDialog />;
    case "help":
      return <HelpDialog op={dialog.op} />;
    case "keys":
      return <KeysDialog />;
    case "note":
      return <NoteDialog k={dialog.k} />;
    case "rename":
      return <RenameDialog page={dialog.page} />;
  }
}
