// All messages, newest first, and toasts for new ones. A click shows the block a message is about.

import type { Message } from "../app/store";
import { get, set, useDoc, useStudio } from "../app/store";
import { showBlock } from "../page/actions";
import { pinPath } from "../page/page";
import { open } from "../project/pages";
import { dismiss } from "./messages";

export function MessagesPanel() {
  const messages = useStudio((state) => state.messages);
  const faults = Object.entries(useDoc()?.checked.errors ?? {});
  return (
    <div className="messages">
      {faults.map(([id, fault]) => (
        <button key={id} className="message error now" onClick={() => showBlock(id, fault.pin)}>
          <b>{pinPath(id, fault.pin)}</b> {fault.text}
        </button>
      ))}
      {messages.map((message) => (
        <button key={message.key} className={`message ${message.level}`} onClick={() => void goTo(message)}>
          <time>{new Date(message.when).toLocaleTimeString()}</time>{" "}
          {message.block && <b>{pinPath(message.block, message.pin)} </b>}
          {message.text}
          {message.count > 1 && <span className="count"> ×{message.count}</span>}
        </button>
      ))}
      {!messages.length && !faults.length && <p className="quiet">Nothing to say.</p>}
      {messages.length > 0 && <button className="clear" onClick={() => set({ messages: [] })}>Clear</button>}
    </div>
  );
}

export async function goTo(message: Message): Promise<void> {
  if (message.page && message.page !== get().active && !(await open(message.page))) return;
  if (message.block) showBlock(message.block, message.pin);
}

export function Toasts() {
  const toasts = useStudio((state) => state.toasts);
  return (
    <div className="toasts" aria-live="polite">
      {toasts.map((toast) => (
        <div key={toast.key} className={`toast ${toast.level}`} role={toast.level === "error" ? "alert" : "status"}>
          <button className="plain toast-text" onClick={() => void goTo(toast)}>
            {toast.block && <b>{pinPath(toast.block, toast.pin)} </b>}
            {toast.text}
          </button>
          <button className="plain" aria-label="Dismiss" onClick={() => dismiss(toast.key)}>×</button>
        </div>
      ))}
    </div>
  );
}
