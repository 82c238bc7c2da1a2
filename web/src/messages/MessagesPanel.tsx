// All messages, newest first, and toasts for new ones. Each names its page; a click shows the block it is about, and
// buttons apply the known fixes.

import type { Message } from "../app/store";
import { get, set, useDoc, useStudio } from "../app/store";
import { showBlock } from "../page/actions";
import { pinPath } from "../page/page";
import { open } from "../project/pages";
import { FixButtons } from "./fixes";
import { dismiss } from "./messages";

export function MessagesPanel() {
  const messages = useStudio((state) => state.messages);
  const active = useDoc();
  const faults = Object.entries(active?.checked.errors ?? {});
  return (
    <div className="messages">
      {faults.map(([id, fault]) => (
        <div key={id} className="message error now">
          <button className="plain message-text" onClick={() => showBlock(id, fault.pin)}>
            <span className="message-page">{active!.name}</span> <b>{pinPath(id, fault.pin)}</b> {fault.text.replace(`${id}: `, "")}
          </button>
          <FixButtons fixes={fault.fixes} page={active!.name} />
        </div>
      ))}
      {messages.map((message) => (
        <div key={message.key} className={`message ${message.level}`}>
          <button className="plain message-text" onClick={() => void goTo(message)}>
            <time>{new Date(message.when).toLocaleTimeString()}</time>{" "}
            {message.page && <span className="message-page">{message.page} </span>}
            {message.block && <b>{pinPath(message.block, message.pin)} </b>}
            {message.text}
            {message.count > 1 && <span className="count"> ×{message.count}</span>}
          </button>
          <FixButtons fixes={message.fixes} page={message.page} />
        </div>
      ))}
      {!messages.length && !faults.length && <p className="quiet">No messages.</p>}
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
  const active = useStudio((state) => (state.start ? null : state.active));
  return (
    <div className="toasts" aria-live="polite">
      {toasts.map((toast) => (
        <div key={toast.key} className={`toast ${toast.level}`} role={toast.level === "error" ? "alert" : "status"}>
          <div className="toast-body">
            <button className="plain toast-text" onClick={() => void goTo(toast)}>
              {toast.page && toast.page !== active && <span className="message-page">{toast.page} </span>}
              {toast.block && <b>{pinPath(toast.block, toast.pin)} </b>}
              {toast.text}
            </button>
            <FixButtons fixes={toast.fixes} page={toast.page} done={() => dismiss(toast.key)} />
          </div>
          <button className="plain" aria-label="Dismiss" onClick={() => dismiss(toast.key)}>×</button>
        </div>
      ))}
    </div>
  );
}
