// What survives a reload: the history of each page and the window's settings. Edits that the server has not received
// outlive the window too: closing a tab too early, or a crash of the browser, loses none of them.

import type { Doc, StudioState, Theme } from "../app/store";
import { get } from "../app/store";
import type { History, Kept } from "../history/history";
import { begin, keep, pageAt, record, unkeep } from "../history/history";
import { say } from "../messages/messages";
import { samePage } from "../page/page";
import type { Opened, Page } from "../transport/protocol";

interface Draft {
  revision: string;
  unsent: boolean;
  flying: Page | null; // sent, but not answered: the server may have it or not
  window: string;
  kept: Kept;
}

/** Edits that a window did not bring to the server. */
export interface Unsent {
  revision: string; // of the page they were made on
  flying: Page | null;
  page: Page;
  window: string;
}

/** Pages that are on their way to the server, by name; `saving` fills it. */
export const inTheAir = new Map<string, Page>();

function folder(): string {
  return get().hello?.project.folder ?? "";
}

function keyOf(name: string): string {
  return `rowgrad:${folder()}:${name}`;
}

function unsentKey(name: string, window: string): string {
  return `rowgrad-unsent:${JSON.stringify([folder(), name])}:${window}`;
}

/** Storage may be full, or forbidden; then a window begins anew after a reload, and nothing else is wrong. */
function quietly<T>(work: () => T): T | null {
  try {
    return work();
  } catch {
    return null;
  }
}

export function keepDoc(doc: Doc): void {
  if (!FEATURES.drafts) return;
  const flying = inTheAir.get(doc.name) ?? null;
  const window = get().transport?.window ?? "";
  const unsent = doc.page !== doc.sent;
  for (const most of [60, 15, 2]) {
    const draft: Draft = { revision: doc.revision, unsent, flying: flying === doc.page ? null : flying, window, kept: keep(doc.history, most) };
    if (quietly(() => (sessionStorage.setItem(keyOf(doc.name), JSON.stringify(draft)), true))) break;
  }
  const key = unsentKey(doc.name, window);
  if (!unsent) quietly(() => localStorage.removeItem(key));
  else quietly(() => localStorage.setItem(key, JSON.stringify({ revision: doc.revision, flying, page: doc.page, window } satisfies Unsent)));
}

/** What this window knew of a page before it was loaded again. */
export function kept(name: string): (Omit<Draft, "kept"> & { history: History }) | null {
  return quietly(() => {
    const text = sessionStorage.getItem(keyOf(name));
    if (!text) return null;
    const { kept: steps, ...draft } = JSON.parse(text) as Draft;
    return { ...draft, history: unkeep(steps) };
  });
}

/** Edits of windows that are gone. One that is still there sends the same, which the server takes once. */
export function leftBehind(name: string): Unsent[] {
  const start = unsentKey(name, "");
  const found = quietly(() => Object.keys(localStorage).filter((key) => key.startsWith(start))) ?? [];
  return found.flatMap((key) => quietly(() => [JSON.parse(localStorage.getItem(key) ?? "") as Unsent]) ?? []);
}

/** The edits of these windows are in this window's hands now. Those of others wait until the page is opened again. */
export function takeOver(name: string, windows: Iterable<string>): void {
  for (const window of windows) quietly(() => localStorage.removeItem(unsentKey(name, window)));
}

export function forget(name: string): void {
  quietly(() => sessionStorage.removeItem(keyOf(name)));
  quietly(() => localStorage.removeItem(unsentKey(name, get().transport?.window ?? "")));
}

// -- tabs and settings ------------------------------------------------------------------------------------------------

const WINDOW = ["tabs", "active", "minimap", "snapping", "paletteOpen", "inspectorOpen", "bottomOpen", "bottom", "sizes"] as const;
const THEMES: readonly string[] = ["light", "dark", "system"];

export function keepWindow(now: StudioState, before: StudioState): void {
  if (now.theme !== before.theme) quietly(() => localStorage.setItem("rowgrad:theme", now.theme));
  if (WINDOW.every((key) => now[key] === before[key])) return;
  const settings = Object.fromEntries(WINDOW.map((key) => [key, now[key]]));
  quietly(() => sessionStorage.setItem(keyOf("*window"), JSON.stringify(settings)));
}

export function keptWindow(): Partial<StudioState> {
  const found = quietly(() => JSON.parse(sessionStorage.getItem(keyOf("*window")) ?? "{}") as Record<string, unknown>) ?? {};
  return Object.fromEntries(WINDOW.filter((key) => key in found).map((key) => [key, found[key]]));
}

export function keptTheme(): Theme {
  const found = quietly(() => localStorage.getItem("rowgrad:theme"));
  return found && THEMES.includes(found) ? (found as Theme) : "system";
}

export const ELSEWHERE = "changed in another window";

/** The steps this window knows of a page, with edits that never arrived; and the revision they are based on. */
export function remembered(name: string, { page, revision }: Opened): { history: History; base: string; taken: Set<string> } {
  const draft = kept(name);
  const left = leftBehind(name);
  // What has arrived after all needs no taking over.
  const unsent = draft?.unsent ? { ...draft, page: pageAt(draft.history) } : left.find((one) => !samePage(one.page, page));
  const taken = new Set(left.filter((one) => samePage(one.page, page)).map((one) => one.window));
  if (unsent) taken.add(unsent.window);
  let history = draft?.history ?? begin(page);
  if (!unsent || samePage(unsent.page, page)) {
    history = samePage(pageAt(history), page) ? history : record(history, ELSEWHERE, page);
    // The very object, so that it is known to be what the server has.
    return { history: { ...history, steps: history.steps.map((step, k) => (k === history.now ? { ...step, page } : step)) }, base: revision, taken };
  }
  if (!draft?.unsent) {
    history = record(history, "edits of a window that was closed", unsent.page);
    say("info", `Edits of ${name} that had not been saved were brought back.`, { page: name });
  }
  // What the server has may be what was on its way when the window went; then nobody else has written.
  const ours = unsent.flying !== null && samePage(unsent.flying, page);
  const known = ours || history.steps.some((step) => samePage(step.page, page));
  return { history, base: known ? revision : unsent.revision, taken };
}
