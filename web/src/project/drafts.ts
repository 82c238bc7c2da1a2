// What survives a reload: the history of each page and the window's settings. Open tabs and edits that the server has not
// received outlive the window too: closing a tab too early, or a crash of the browser, loses none of them.

import type { Doc, StudioState, Theme } from "../app/store";
import { get } from "../app/store";
import type { History, SerializedHistory } from "../history/history";
import { begin, deserialize, pageAt, record, serialize } from "../history/history";
import { notify } from "../messages/messages";
import { samePage } from "../page/page";
import type { Opened, Page } from "../transport/protocol";

interface Draft {
  revision: string;
  unsent: boolean;
  pending: Page | null; // sent without a response: the server may have it or not
  window: string;
  history: SerializedHistory;
}

/** Edits of a window that the server has not received. */
export interface Unsent {
  revision: string; // of the page they are based on
  pending: Page | null;
  page: Page;
  window: string;
}

/** Pages in flight to the server, by name; `autosave.ts` maintains it. */
export const inFlight = new Map<string, Page>();

function folder(): string {
  return get().hello?.project.folder ?? "";
}

function keyOf(name: string): string {
  return `rowgrad:${folder()}:${name}`;
}

function unsentKey(name: string, window: string): string {
  return `rowgrad-unsent:${JSON.stringify([folder(), name])}:${window}`;
}

/** Storage may be full or forbidden; then a window starts from scratch after a reload, and nothing else breaks. */
function tryStorage<T>(work: () => T): T | null {
  try {
    return work();
  } catch {
    return null;
  }
}

export function saveDraft(doc: Doc): void {
  if (!FEATURES.drafts) return;
  const pending = inFlight.get(doc.name) ?? null;
  const window = get().transport?.window ?? "";
  const unsent = doc.page !== doc.sent;
  for (const most of [60, 15, 2]) {
    const draft: Draft = { revision: doc.revision, unsent, pending: pending === doc.page ? null : pending, window, history: serialize(doc.history, most) };
    if (tryStorage(() => (sessionStorage.setItem(keyOf(doc.name), JSON.stringify(draft)), true))) break;
  }
  const key = unsentKey(doc.name, window);
  if (!unsent) tryStorage(() => localStorage.removeItem(key));
  else tryStorage(() => localStorage.setItem(key, JSON.stringify({ revision: doc.revision, pending, page: doc.page, window } satisfies Unsent)));
}

/** This window's draft of a page, from before a reload. */
function loadDraft(name: string): (Omit<Draft, "history"> & { history: History }) | null {
  return tryStorage(() => {
    const text = sessionStorage.getItem(keyOf(name));
    if (!text) return null;
    const { history: saved, ...draft } = JSON.parse(text) as Draft;
    return { ...draft, history: deserialize(saved) };
  });
}

/** Unsent edits of closed windows. If a window is still open, both send the same page, which the server accepts once. */
function unsentEdits(name: string): Unsent[] {
  const start = unsentKey(name, "");
  const found = tryStorage(() => Object.keys(localStorage).filter((key) => key.startsWith(start))) ?? [];
  return found.flatMap((key) => tryStorage(() => [JSON.parse(localStorage.getItem(key) ?? "") as Unsent]) ?? []);
}

/** Remove the edits that this window took over. Those of other windows wait until the page is opened again. */
export function discardUnsent(name: string, windows: Iterable<string>): void {
  for (const window of windows) tryStorage(() => localStorage.removeItem(unsentKey(name, window)));
}

export function removeDraft(name: string): void {
  tryStorage(() => sessionStorage.removeItem(keyOf(name)));
  tryStorage(() => localStorage.removeItem(unsentKey(name, get().transport?.window ?? "")));
}

// -- tabs and settings ------------------------------------------------------------------------------------------------

const WINDOW = ["tabs", "active", "minimap", "snapping", "paletteOpen", "inspectorOpen", "bottomOpen", "bottom", "sizes"] as const;
const THEMES: readonly string[] = ["light", "dark", "system"];

/** Store what changed since `before`; everything without it. */
export function saveWindowSettings(now: StudioState, before: StudioState | null): void {
  if (before && now.theme !== before.theme) tryStorage(() => localStorage.setItem("rowgrad:theme", now.theme));
  if (before && (now.tabs !== before.tabs || now.active !== before.active)) saveTabs(now);
  if (before && WINDOW.every((key) => now[key] === before[key])) return;
  const settings = Object.fromEntries(WINDOW.map((key) => [key, now[key]]));
  const key = keyOf("*window");
  // If the storage is full, the tabs of before would be restored; without them, those in the local storage are.
  if (!tryStorage(() => (sessionStorage.setItem(key, JSON.stringify(settings)), true))) tryStorage(() => sessionStorage.removeItem(key));
}

export function loadWindowSettings(): Partial<StudioState> {
  const found = tryStorage(() => JSON.parse(sessionStorage.getItem(keyOf("*window")) ?? "{}") as Record<string, unknown>) ?? {};
  return Object.fromEntries(WINDOW.filter((key) => key in found).map((key) => [key, found[key]]));
}

export function loadTheme(): Theme {
  const found = tryStorage(() => localStorage.getItem("rowgrad:theme"));
  return found && THEMES.includes(found) ? (found as Theme) : "system";
}

// -- tabs of closed windows --------------------------------------------------------------------------------------------

interface Tabs {
  tabs: string[];
  active: string | null;
}

/** Store the tabs for the next window. */
export function saveTabs({ tabs, active, embedded }: StudioState): void {
  if (!embedded) tryStorage(() => localStorage.setItem(keyOf("*tabs"), JSON.stringify({ tabs, active } satisfies Tabs)));
}

/** The tabs of the window that was closed last; null while another window shows the project, or if the browser cannot tell. */
export async function tabsOfClosedWindow(): Promise<Tabs | null> {
  if (get().embedded) return null;
  try {
    const { held = [] } = await navigator.locks.query();
    if (held.some((lock) => lock.name === lockName())) return null;
    const found = JSON.parse(localStorage.getItem(keyOf("*tabs")) ?? "null") as Tabs | null;
    return Array.isArray(found?.tabs) ? found : null;
  } catch {
    return null;
  }
}

/** Hold a lock as long as this window is open, so that others know. */
export function announceWindow(): void {
  if (get().embedded) return;
  const locks = navigator.locks as LockManager | undefined; // only on localhost and over HTTPS
  void locks?.request(lockName(), { mode: "shared" }, () => new Promise(() => undefined)).catch(() => undefined);
}

function lockName(): string {
  return `rowgrad:${folder()}`;
}

// -- opening a page ---------------------------------------------------------------------------------------------------

export const CHANGED_ELSEWHERE = "changed in another window";

/** The history of a page that is opened: this window's steps, unsent edits, and the revision they are based on. */
export function restoreHistory(name: string, { page, revision }: Opened): { history: History; base: string; obsolete: Set<string> } {
  const draft = loadDraft(name);
  const left = unsentEdits(name);
  // Edits that reached the server need no restoring.
  const unsent = draft?.unsent ? { ...draft, page: pageAt(draft.history) } : left.find((one) => !samePage(one.page, page));
  const obsolete = new Set(left.filter((one) => samePage(one.page, page)).map((one) => one.window));
  if (unsent) obsolete.add(unsent.window);
  let history = draft?.history ?? begin(page);
  if (!unsent || samePage(unsent.page, page)) {
    history = samePage(pageAt(history), page) ? history : record(history, CHANGED_ELSEWHERE, page);
    // The same object, so that identity shows that the server has it.
    return { history: { ...history, steps: history.steps.map((step, k) => (k === history.now ? { ...step, page } : step)) }, base: revision, obsolete };
  }
  if (!draft?.unsent) {
    history = record(history, "edits of a window that was closed", unsent.page);
    notify("info", `Edits of ${name} that had not been saved were brought back.`, { page: name });
  }
  // The server may have the page that was in flight when the window closed; then nobody else has written.
  const ours = unsent.pending ? samePage(unsent.pending, page) : false;
  const known = ours || history.steps.some((step) => samePage(step.page, page));
  return { history, base: known ? revision : unsent.revision, obsolete };
}
