// Before a run without a session block that changes Variables: what it changes, and what else could be done.

import type { Mode, Question } from "../transport/protocol";
import { applyFix } from "../messages/fixes";
import { DialogFrame, closeDialog } from "../ui/DialogFrame";
import { run } from "./runs";

export function AskRunDialog({ page, mode, question }: { page: string; mode: Mode; question: Question }) {
  const names = question.variables.join(", ");
  const agree = () => {
    closeDialog();
    void run(mode, undefined, true);
  };
  return (
    <DialogFrame title={`Run ${page} and change Variables?`}>
      <p>
        This page has no session block, so every block that nothing consumes runs. That changes {question.variables.length === 1 ? "the Variable" : "the Variables"} <b>{names}</b>.
      </p>
      <footer className="dialog-foot">
        <button onClick={closeDialog}>Cancel</button>
        {question.fixes.map((fix) => (
          <button key={fix.title} onClick={() => void applyFix(fix, page).then((ok) => ok && closeDialog())}>{fix.title}</button>
        ))}
        <button className="primary" data-first onClick={agree}>Run and change {names}</button>
      </footer>
    </DialogFrame>
  );
}
