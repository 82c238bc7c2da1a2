// Autosave: every edit reaches the server within a fraction of a second, and is judged there.

import type { Page, Saved } from "../transport/protocol";
import { Refusal } from "../transport/protocol";
import { record } from "../model/history";
import { has } from "./features";
import { keepDoc } from "./keeping";
import { say, sayError } from "./messages";
import { changeDoc, doc, get, server, set } from "./store";

const WAIT = 150; // milliseconds without an edit until it is sent
const LONGEST = 500; // milliseconds an edit waits at most while others follow

const timers = new Map<string, ReturnType<typeof setTimeout>>();
const since = new Map<string, number>();
const flights = new Map<string, Promise<void>>();

export function saveSoon(name: string): void {
  changeDoc(name, { saving: "waiting" });
  if (!has("autosave")) return;
  const first = since.get(name) ?? Date.now();
  since.set(name, first);
  clearTimeout(timers.get(name));
  const wait = Math.max(0, Math.min(WAIT, first + LONGEST - Date.now()));
  timers.set(
    name,
    setTimeout(() => void flush(name), wait),
  );
}

/** Until the server has the page as it is now. */
export async function flush(name: string): Promise<boolean> {
  clearTimeout(timers.get(name));
  timers.delete(name);
  since.delete(name);
  for (;;) {
    const flying = flights.get(name);
    if (flying) {
      await flying;
      continue;
    }
    const open = doc(name);
    if (!open) return false;
    if (open.page === open.sent) return true;
    const flight = send(name, open.page, open.revision);
    flights.set(name, flight);
    try {
      await flight;
    } finally {
      flights.delete(name);
    }
    if (doc(name)?.saving === "failed") return false;
  }
}

async function send(name: string, page: Page, base: string): Promise<void> {
  changeDoc(name, { saving: "saving" });
  try {
    const saved = await server().ask<Saved>("save", { name, base, page, window: server().window });
    if (saved.conflict) {
      const open = doc(name)!;
      const { kept, revision, page: theirs, checked } = saved.conflict;
      // What the other window wrote stands; what was done here is a page of its own now.
      const history = record(open.history, "changed in another window", theirs);
      changeDoc(name, { page: theirs, sent: theirs, revision, checked, history, saving: "saved" });
      say("warning", `Another window changed ${name} first. Its page stands; yours is kept as “${kept}”.`, { page: name }, false);
      set({ dialog: { kind: "conflict", name, kept } });
    } else {
      const settled = doc(name)?.page === page;
      changeDoc(name, { revision: saved.revision, checked: saved.checked, sent: page, saving: settled ? "saved" : "waiting" });
    }
    const now = doc(name);
    if (now) keepDoc(now);
  } catch (error) {
    changeDoc(name, { saving: "failed" });
    const lost = error instanceof Refusal && error.fault.kind === "ConnectionError";
    if (!lost) sayError(error, { page: name });
    else if (get().connected) set({ connected: false });
  }
}

/** After the server has come back: send what it missed. */
export function saveAll(): void {
  for (const open of Object.values(get().docs)) if (open.page !== open.sent) void flush(open.name);
}
