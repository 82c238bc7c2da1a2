// Passing messages.

import { dismiss } from "../state/messages";
import { useStudio } from "../state/store";
import { goTo } from "./MessagesPanel";

export function Toasts() {
  const toasts = useStudio((state) => state.toasts);
  return (
    <div className="toasts" aria-live="polite">
      {toasts.map((toast) => (
        <div key={toast.key} className={`toast ${toast.level}`} role={toast.level === "error" ? "alert" : "status"}>
          <button className="plain toast-text" onClick={() => void goTo(toast)}>
            {toast.block && <b>{toast.block}{toast.pin ? `.${toast.pin}` : ""} </b>}
            {toast.text}
          </button>
          <button className="plain" aria-label="Dismiss" onClick={() => dismiss(toast.key)}>×</button>
        </div>
      ))}
    </div>
  );
}
