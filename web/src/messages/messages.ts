// Messages to the user, linked to the block they are about. A repeated message is counted, not added.

import type { Message } from "../app/store";
import { get, set } from "../app/store";
import { RequestError, messageOf } from "../transport/protocol";

const MOST = 500;
const SHOWN = 6000; // milliseconds a toast stays
let next = 1;

type Where = { block?: string | null | undefined; pin?: string | null | undefined; page?: string | null | undefined };

export function notify(level: Message["level"], text: string, where: Where = {}, passing = true): void {
  const page = where.page ?? get().active;
  const made: Message = { key: next++, level, text, page, block: where.block ?? null, pin: where.pin ?? null, when: Date.now(), count: 1 };
  set((state) => {
    const last = state.messages[0];
    const again = last && last.text === text && last.block === made.block && last.page === page;
    const messages = again ? [{ ...last, when: made.when, count: last.count + 1 }, ...state.messages.slice(1)] : [made, ...state.messages.slice(0, MOST - 1)];
    const toasts = passing ? [...state.toasts.filter((t) => t.text !== text).slice(-3), made] : state.toasts;
    return { messages, toasts };
  });
  if (passing) setTimeout(() => dismiss(made.key), level === "error" ? 2 * SHOWN : SHOWN);
}

export function dismiss(key: number): void {
  set((state) => ({ toasts: state.toasts.filter((toast) => toast.key !== key) }));
}

/** Show the message of an error. */
export function notifyError(error: unknown, where: Where = {}): void {
  const place = error instanceof RequestError ? { block: error.fault.block, pin: error.fault.pin } : {};
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
