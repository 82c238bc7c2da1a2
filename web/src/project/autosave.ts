// Autosave: every edit reaches the server within a fraction of a second and is validated there.

import { NOTHING_SELECTED, changeDoc, doc, get, server, set } from "../app/store";
import { record } from "../history/history";
import { attempt, say, sayError } from "../messages/messages";
import type { Conflict, Opened, Page, Saved } from "../transport/protocol";
import { Refusal } from "../transport/protocol";
import { ELSEWHERE, inTheAir, keepDoc } from "./drafts";

const WAIT = 150; // milliseconds without an edit until it is sent
const LONGEST = 500; // milliseconds an edit waits at most while others follow
const AGAIN = 1000; // milliseconds until a page that did not arrive is sent once more

const timers = new Map<string, ReturnType<typeof setTimeout>>();
const since = new Map<string, number>();
const flights = new Map<string, Promise<unknown>>();

export function saveSoon(name: string): void {
  changeDoc(name, { saving: "waiting" });
  if (!FEATURES.autosave) return;
  const first = since.get(name) ?? Date.now();
  since.set(name, first);
  flushIn(name, Math.max(0, Math.min(WAIT, first + LONGEST - Date.now())));
}

function flushIn(name: string, wait: number): void {
  clearTimeout(timers.get(name));
  timers.set(
    name,
    setTimeout(() => void flush(name), wait),
  );
}

const reading = new Map<string, Set<Promise<unknown>>>();

/** Something typed that the server reads just now: the page is not whole without it. */
export function isRead(name: string | null, work: Promise<unknown>): void {
  if (name === null) return;
  const all = reading.get(name) ?? new Set();
  reading.set(name, all.add(work));
  const end = () => void all.delete(work);
  work.then(end, end);
}

/** Until the server has the page with all that was typed into it. */
export async function flushWhole(name: string): Promise<boolean> {
  await Promise.allSettled(reading.get(name) ?? []);
  return flush(name);
}

/** Until the server has the page as it is now. */
export async function flush(name: string): Promise<boolean> {
  clearTimeout(timers.get(name));
  timers.delete(name);
  since.delete(name);
  for (;;) {
    const flying = flights.get(name);
    if (flying) {
      await flying.catch(() => undefined);
      continue;
    }
    const open = doc(name);
    if (!open) return false;
    // A page without an answer goes first: the server may have it, and would take the next for another's work.
    const page = inTheAir.get(name) ?? open.page;
    if (page === open.sent && open.page === open.sent) {
      inTheAir.delete(name);
      // Undone and done again: it is what the server has.
      if (open.saving !== "saved") changeDoc(name, { saving: "saved" });
      return true;
    }
    await alone(name, () => send(name, page, open.revision));
    if (doc(name)?.saving === "failed") return false;
  }
}

/** Do something with a page on the server while none of its edits is on the way there. */
export async function alone<T>(name: string, work: () => Promise<T>): Promise<T> {
  for (let flying = flights.get(name); flying; flying = flights.get(name)) await flying.catch(() => undefined);
  const flight = work();
  flights.set(name, flight);
  try {
    return await flight;
  } finally {
    flights.delete(name);
  }
}

async function send(name: string, page: Page, base: string): Promise<void> {
  inTheAir.set(name, page);
  changeDoc(name, { saving: "saving" });
  try {
    const saved = await server().ask<Saved>("save", { name, base, page, window: server().window });
    inTheAir.delete(name);
    if (saved.conflict) await giveWay(name, page, saved.conflict);
    else {
      const settled = doc(name)?.page === page;
      changeDoc(name, { revision: saved.revision, checked: saved.checked, sent: page, saving: settled ? "saved" : "waiting" });
    }
  } catch (error) {
    changeDoc(name, { saving: "failed" });
    if (error instanceof Refusal && isPassing(error)) flushIn(name, AGAIN);
    else {
      inTheAir.delete(name);
      sayError(error, { page: name });
    }
  }
  const now = doc(name);
  if (now) keepDoc(now);
}

/** No answer, or one that says to come again, perhaps with access: nothing is wrong with the page. */
function isPassing(error: Refusal): boolean {
  return ["ConnectionError", "AccessRefused", "Busy", "TooSlow"].includes(error.fault.kind);
}

/** What the other window wrote stands; what was done here is a page of its own now. */
async function giveWay(name: string, sent: Page, conflict: Conflict): Promise<void> {
  const { kept, revision, page: theirs, checked } = conflict as Conflict & { page: Page | null };
  let put = sent;
  // Edits since it was sent, and those made while these are on their way.
  for (let now = doc(name); now && now.page !== put; now = doc(name)) {
    const page = (put = now.page);
    await attempt(() => addTo(kept, page));
  }
  const open = doc(name);
  if (open && theirs) {
    const history = record(open.history, ELSEWHERE, theirs);
    changeDoc(name, { page: theirs, sent: theirs, revision, checked, history, saving: "saved", ...NOTHING_SELECTED });
  } else if (open) {
    // Another program has left something there that is no page. It is not to be overwritten by the next edit.
    changeDoc(name, { sent: open.page, saving: "failed" });
    say("error", `${name} was overwritten with something that is no page. Yours is kept as “${kept}”; go on there.`, { page: name });
  }
  if (!FEATURES.conflicts) return;
  const busy = get().dialog !== null; // what is being typed in a dialog is not taken away
  say("warning", `Another window changed ${name} first. Its page stands; yours is kept as “${kept}”.`, { page: name }, busy);
  if (!busy) set({ dialog: { kind: "conflict", name, kept } });
}

async function addTo(name: string, page: Page): Promise<void> {
  const { revision } = await server().ask<Opened>("open", { name });
  await server().ask<Saved>("save", { name, base: revision, page, window: server().window });
}

/** After the server has come back: send what it missed. */
export function saveAll(): void {
  if (!FEATURES.autosave) return;
  for (const open of Object.values(get().docs)) if (open.page !== open.sent) void flush(open.name);
}
