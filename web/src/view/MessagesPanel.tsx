// What was said, the newest first. A click leads to the block it belongs to.

import { open } from "../state/documents";
import { showBlock } from "../state/editing";
import type { Message } from "../state/store";
import { get, set, useDoc, useStudio } from "../state/store";

export function MessagesPanel() {
  const messages = useStudio((state) => state.messages);
  const faults = Object.entries(useDoc()?.checked.errors ?? {});
  return (
    <div className="messages">
      {faults.map(([id, fault]) => (
        <button key={id} className="message error now" onClick={() => showBlock(id, fault.pin)}>
          <b>{id}{fault.pin ? `.${fault.pin}` : ""}</b> {fault.text}
        </button>
      ))}
      {messages.map((message) => (
        <button key={message.key} className={`message ${message.level}`} onClick={() => void goTo(message)}>
          <time>{new Date(message.when).toLocaleTimeString()}</time>{" "}
          {message.block && <b>{message.block}{message.pin ? `.${message.pin}` : ""} </b>}
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
