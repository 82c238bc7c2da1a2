// How the value dialogs end: Cancel, Apply, and Ctrl+Enter.

import { closeDialog } from "../ui/DialogFrame";

export function ApplyButtons({ apply, disabled }: { apply: () => Promise<void> | void; disabled: boolean }) {
  return (
    <div className="dialog-foot">
      <button onClick={closeDialog}>Cancel</button>
      <button className="primary value-apply" onClick={() => void apply()} disabled={disabled}>Apply</button>
    </div>
  );
}

export function applyOnCtrlEnter(event: React.KeyboardEvent): void {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  // Leave the cell that is being edited first; its text is in the state one turn later.
  (document.activeElement as HTMLElement | null)?.blur();
  setTimeout(() => document.querySelector<HTMLButtonElement>(".value-apply")?.click(), 0);
}
