// Autosave: every edit reaches the server within a fraction of a second and is validated there.

import type { Merge } from "../app/store";
import { NOTHING_SELECTED, changeDoc, doc, get, server, set } from "../app/store";
import { record } from "../history/history";
import { attempt, notify, notifyError } from "../messages/messages";
import type { Checked, Conflict, Opened, Page, Saved } from "../transport/protocol";
import { RequestError } from "../transport/protocol";
import { CHANGED_ELSEWHERE, inFlight, saveDraft } from "./drafts";

const WAIT = 150; // milliseconds without an edit until it is sent
const LONGEST = 500; // milliseconds an edit waits at most while others follow it
const AGAIN = 1000; // milliseconds until a failed save is retried

const timers = new Map<string, ReturnType<typeof setTimeout>>();
const since = new Map<string, number>();
const requests = new Map<string, Promise<unknown>>();

export function scheduleSave(name: string): void {
  changeDoc(name, { saving: "waiting" });
  if (!FEATURES.autosave) return;
  const first = since.get(name) ?? Date.now();
  since.set(name, first);
  saveIn(name, Math.max(0, Math.min(WAIT, first + LONGEST - Date.now())));
}

function saveIn(name: string, wait: number): void {
  clearTimeout(timers.get(name));
  timers.set(
    name,
    setTimeout(() => void saveNow(name), wait),
  );
}

const parsing = new Map<string, Set<Promise<unknown>>>();

/** Track text that the server is parsing: the page is incomplete until it has the value. */
export function trackParsing(name: string | null, work: Promise<unknown>): void {
  if (name === null) return;
  const all = parsing.get(name) ?? new Set();
  parsing.set(name, all.add(work));
  const end = () => void all.delete(work);
  work.then(end, end);
}

/** Save the page once all typed text is parsed. */
export async function saveAfterParsing(name: string): Promise<boolean> {
  await Promise.allSettled(parsing.get(name) ?? []);
  return saveNow(name);
}

/** Save until the server has the current page; false if that failed. */
export async function saveNow(name: string): Promise<boolean> {
  clearTimeout(timers.get(name));
  timers.delete(name);
  since.delete(name);
  for (;;) {
    const pending = requests.get(name);
    if (pending) {
      await pending.catch(() => undefined);
      continue;
    }
    const open = doc(name);
    if (!open) return false;
    // A save without a response is sent again first: the server may have it, and would treat the next one as a conflict.
    const page = inFlight.get(name) ?? open.page;
    if (page === open.sent && open.page === open.sent) {
      inFlight.delete(name);
      // Undone and redone: the server has this page already.
      if (open.saving !== "saved") changeDoc(name, { saving: "saved" });
      return true;
    }
    await exclusively(name, () => send(name, page, open.revision));
    if (doc(name)?.saving === "failed") return false;
  }
}

/** Do something with a page on the server while no save of it is in flight. */
export async function exclusively<T>(name: string, work: () => Promise<T>): Promise<T> {
  for (let pending = requests.get(name); pending; pending = requests.get(name)) await pending.catch(() => undefined);
  const request = work();
  requests.set(name, request);
  try {
    return await request;
  } finally {
    requests.delete(name);
  }
}

async function send(name: string, page: Page, base: string): Promise<void> {
  inFlight.set(name, page);
  changeDoc(name, { saving: "saving" });
  try {
    const saved = await server().request<Saved>("save", { name, base, page, window: server().window });
    inFlight.delete(name);
    if (saved.conflict) await resolveConflict(name, page, base, saved.conflict);
    else if (saved.merged && FEATURES.conflicts) adoptMerged(name, page, saved.merged, saved);
    else {
      const settled = doc(name)?.page === page;
      changeDoc(name, { revision: saved.revision, checked: saved.checked, sent: page, saving: settled ? "saved" : "waiting" });
    }
  } catch (error) {
    changeDoc(name, { saving: "failed" });
    if (error instanceof RequestError && isTransient(error)) saveIn(name, AGAIN);
    else {
      inFlight.delete(name);
      notifyError(error, { page: name });
    }
  }
  const now = doc(name);
  if (now) saveDraft(now);
}

/** Whether to retry: there was no response, or one that requests a retry. */
function isTransient(error: RequestError): boolean {
  return ["ConnectionError", "AccessRefused", "Busy", "TooSlow"].includes(error.fault.kind);
}

/** Show a page that the server merged with changes of other windows. */
function adoptMerged(name: string, sent: Page, merged: Page, saved: { revision: string; checked: Checked; sent?: string }): void {
  const open = doc(name);
  if (!open) return;
  const { revision, checked } = saved;
  if (open.page !== sent) {
    // Edits made since it was sent do not have the others' changes: the next save is merged from what was sent.
    changeDoc(name, { sent, revision: saved.sent ?? open.revision, saving: "waiting" });
    return;
  }
  const history = record(open.history, CHANGED_ELSEWHERE, merged);
  const ids = new Set(merged.blocks.map((block) => block.id));
  const blocks = new Set([...open.blocks].filter((id) => ids.has(id)));
  changeDoc(name, { page: merged, sent: merged, revision, checked, history, saving: "saved", ...NOTHING_SELECTED, blocks });
}

/** Merge again, with the user's choices of fields; the copy is then not needed. */
export async function saveChoices(name: string, kept: string, merge: Merge, mine: string[], theirs: string[]): Promise<boolean> {
  const { base, mine: page } = merge;
  const arrived = await attempt(
    () =>
      exclusively(name, async () => {
        const saved = await server().request<Saved>("save", { name, base, page, window: server().window, mine, theirs });
        if (saved.conflict) await resolveConflict(name, page, base, saved.conflict);
        else {
          const open = doc(name);
          if (open) adoptMerged(name, open.page, saved.merged ?? page, saved);
          await server().request("remove", { name: kept });
        }
        return true;
      }),
    { page: name },
  );
  const now = doc(name);
  if (now) saveDraft(now);
  return arrived === true;
}

/**
 * Resolve a conflict: the other window's page stays, and the edits made here are saved as a new page, until the user
 * decides about the fields that both changed.
 */
async function resolveConflict(name: string, sent: Page, base: string, conflict: Conflict): Promise<void> {
  const { kept, fields = [], revision, page: theirs, checked } = conflict as Conflict & { page: Page | null };
  let put = sent;
  // Edits made since it was sent, and during these saves.
  for (let now = doc(name); now && now.page !== put; now = doc(name)) {
    const page = (put = now.page);
    await attempt(() => saveTo(kept, page));
  }
  const open = doc(name);
  if (open && theirs) {
    const history = record(open.history, CHANGED_ELSEWHERE, theirs);
    changeDoc(name, { page: theirs, sent: theirs, revision, checked, history, saving: "saved", ...NOTHING_SELECTED });
  } else if (open) {
    // Another program wrote something that is not a page. The next edit must not overwrite it.
    changeDoc(name, { sent: open.page, saving: "failed" });
    notify("error", `${name} was overwritten with something that is no page. Yours is kept as “${kept}”; go on there.`, { page: name });
  }
  if (!FEATURES.conflicts) return;
  const busy = get().dialog !== null; // an open dialog keeps its text
  notify("warning", `Another window changed ${name} first. Its page stands; yours is kept as “${kept}”.`, { page: name }, busy);
  const merge = fields.length && theirs ? { base, mine: put, fields } : undefined;
  if (!busy) set({ dialog: { kind: "conflict", name, kept, ...(merge ? { merge } : {}) } });
}

async function saveTo(name: string, page: Page): Promise<void> {
  const { revision } = await server().request<Opened>("open", { name });
  await server().request<Saved>("save", { name, base: revision, page, window: server().window });
}

/** Save all pages with unsent edits, after the server came back. */
export function saveAll(): void {
  if (!FEATURES.autosave) return;
  for (const open of Object.values(get().docs)) if (open.page !== open.sent) void saveNow(open.name);
}
