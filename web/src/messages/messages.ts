// Messages to the user, linked to the page and block they are about. A repeated message is counted, not added; a message
// about something that is solved disappears.

import type { About, Message } from "../app/store";
import { doc, get, set } from "../app/store";
import type { Fix } from "../transport/protocol";
import { RequestError, messageOf } from "../transport/protocol";

const MOST = 500;
const SHOWN = 6000; // milliseconds a toast stays
let next = 1;

interface Where {
  block?: string | null | undefined;
  pin?: string | null | undefined;
  page?: string | null | undefined;
  about?: About | undefined; // what solves it
  fixes?: Fix[] | undefined;
}

export function notify(level: Message["level"], text: string, where: Where = {}, passing = true): void {
  const page = where.page === undefined ? get().active : where.page;
  const { block = null, pin = null, about = null, fixes = [] } = where;
  const made: Message = { key: next++, level, text, page, block, pin, about, fixes, when: Date.now(), count: 1 };
  set((state) => {
    const last = state.messages[0];
    const again = last && last.text === text && last.block === made.block && last.page === page;
    const messages = again ? [{ ...made, key: last.key, count: last.count + 1 }, ...state.messages.slice(1)] : [made, ...state.messages.slice(0, MOST - 1)];
    const toasts = passing ? [...state.toasts.filter((t) => t.text !== text).slice(-3), made] : state.toasts;
    return { messages, toasts };
  });
  // A message with buttons stays until one is pressed, it is dismissed, or it is solved.
  if (passing && !fixes.length) setTimeout(() => dismiss(made.key), level === "error" ? 2 * SHOWN : SHOWN);
}

export function dismiss(key: number): void {
  set((state) => ({ toasts: state.toasts.filter((toast) => toast.key !== key) }));
}

/** Remove the messages about something that is solved; without a block or pin, those of the whole page or block. */
export function settle(page: string | null, about: About, block?: string, pin?: string): void {
  const stays = (message: Message) =>
    message.about !== about || message.page !== page || (block !== undefined && message.block !== block) || (pin !== undefined && message.pin !== pin);
  const { messages, toasts } = get();
  if (messages.every(stays) && toasts.every(stays)) return;
  set({ messages: messages.filter(stays), toasts: toasts.filter(stays) });
}

/** Remove the messages about blocks that a page no longer has. */
export function settleRemoved(page: string, ids: ReadonlySet<string>): void {
  const stays = (message: Message) => message.about === null || message.page !== page || message.block === null || ids.has(message.block);
  const { messages, toasts } = get();
  if (messages.every(stays) && toasts.every(stays)) return;
  set({ messages: messages.filter(stays), toasts: toasts.filter(stays) });
}

/** Show the message of an error. What validation found in its block offers the fixes that it found. */
export function notifyError(error: unknown, where: Where = {}): void {
  const { block, pin, fixes } = error instanceof RequestError ? error.fault : {};
  const known = doc(where.page ?? get().active)?.checked.errors[block ?? ""];
  const place = { block, pin, fixes: fixes ?? (known?.pin === pin ? known?.fixes : undefined) };
  notify("error", messageOf(error), { ...place, ...where });
}

/** Do something that may fail, and show why it did. */
export async function attempt<T>(work: () => Promise<T>, where: Where = {}): Promise<T | null> {
  try {
    return await work();
  } catch (error) {
    notifyError(error, where);
    return null;
  }
}
