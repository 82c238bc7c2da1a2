// The dialog that is open.

import { CommandMenu } from "../commands/CommandMenu";
import { KeysDialog } from "../commands/keyboard";
import { ExportDialog } from "../export/ExportDialog";
import { GradientDialog } from "../gradients/GradientDialog";
import { ImportDialog } from "../import/ImportDialog";
import { NoteDialog } from "../notes/Note";
import { HelpDialog } from "../palette/HelpDialog";
import { ConflictDialog, RenameDialog } from "../project/PageDialogs";
import { AskRunDialog } from "../run/AskRunDialog";
import { SnapshotsDialog } from "../run/SnapshotsDialog";
import { SparseDialog } from "../values/SparseDialog";
import { ValueDialog } from "../values/ValueDialog";
import { WireDialog } from "../wires/WireDialog";
import { useStudio } from "./store";

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
      return <GradientDialog />;
    case "export":
      return <ExportDialog />;
    case "import":
      return <ImportDialog name={dialog.name} report={dialog.report} page={dialog.page} />;
    case "conflict":
      return <ConflictDialog name={dialog.name} kept={dialog.kept} merge={dialog.merge} />;
    case "ask-run":
      return <AskRunDialog page={dialog.page} mode={dialog.mode} question={dialog.question} />;
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
