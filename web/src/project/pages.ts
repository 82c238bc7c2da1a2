// Pages of the project: open, close, create, rename, remove; and the server's events about them.

import { NOTHING_SELECTED, changeDoc, doc, get, server, set, useStudio } from "../app/store";
import { pageAt, record } from "../history/history";
import { attempt, notify, notifyError } from "../messages/messages";
import { makeCatalog } from "../palette/catalog";
import { applyRunState } from "../run/runs";
import type { Hello, Opened, Page, PageInfo, RunState, StudioEvent, Transport } from "../transport/protocol";
import { messageOf } from "../transport/protocol";
import { exclusively, saveAfterParsing, saveAll, saveNow, scheduleSave } from "./autosave";
import { CHANGED_ELSEWHERE, announceWindow, discardUnsent, loadTheme, loadWindowSettings, removeDraft, restoreHistory, saveDraft, saveTabs, saveWindowSettings, tabsOfClosedWindow } from "./drafts";

const opening = new Map<string, Promise<boolean>>();
const movedHere = new Set<string>(); // pages this window renames or removes itself

/** Names of pages removed in this window, the latest last. */
export const removedPages: string[] = [];

/** Connect and load the project; open the tabs from before a reload, or the start screen. */
export async function connect(transport: Transport, first: string | null): Promise<() => void> {
  set({ transport, theme: loadTheme() });
  let began = false;
  // Subscribe before the first request, so that no event is missed.
  const leave = transport.listen(onEvent, (connected, signedOut = false) => {
    const was = get().connected;
    set({ connected, signedOut });
    if (began && connected && !was) void onReconnect();
  });
  try {
    await loadHello();
  } catch (error) {
    leave();
    set({ failure: messageOf(error) });
    return leave;
  }
  began = true;
  const { tabs: own, active: ownActive = null, ...settings } = loadWindowSettings();
  set(settings);
  const saved = own ? { tabs: own, active: ownActive } : await tabsOfClosedWindow();
  const { tabs, active } = (FEATURES.restoreTabs && saved) || { tabs: [], active: null };
  announceWindow();
  const there = new Set(get().pages.map((page) => page.name));
  const wanted = tabs.filter((name) => there.has(name));
  // After a reload, the address may name a tab that was closed since or a page that was renamed.
  const named = FEATURES.restoreTabs && own && isReload() && !get().embedded ? null : first;
  if (named && !there.has(named)) notify("warning", `There is no page ${named} in this project.`);
  else if (named && !wanted.includes(named)) wanted.push(named);
  // The address names the page to show; after a reload, the page that was active is active again.
  const order = isReload() ? [active, named] : [named, active];
  const front = order.find((name) => name !== null && wanted.includes(name)) ?? wanted[0];
  if (front !== undefined) await open(front);
  for (const name of wanted) if (name !== front && (await loadPage(name))) addTab(name, wanted);
  if (!get().tabs.length) {
    if (get().pages.length === 1 && !first && !get().pages[0]!.error) await open(get().pages[0]!.name);
    else set({ start: true });
  }
  const forgetWindow = useStudio.subscribe(saveWindowSettings);
  saveWindowSettings(get(), null);
  window.addEventListener("pagehide", onLeave);
  return () => {
    leave();
    forgetWindow();
    window.removeEventListener("pagehide", onLeave);
  };
}

function onLeave(): void {
  saveAll();
  if (get().tabs.length) saveTabs(get()); // a window without tabs leaves those of another
}

function isReload(): boolean {
  return performance.getEntriesByType("navigation").some((one) => (one as PerformanceNavigationTiming).type === "reload");
}

async function loadHello(): Promise<void> {
  const hello = await server().request<Hello>("hello");
  set({ hello, catalog: makeCatalog(hello.catalog), pages: hello.project.pages, failure: null });
}

/** The server is back, perhaps as another process: load what changed, and send what it missed. */
async function onReconnect(): Promise<void> {
  const before = get().pages;
  if (!(await loadHello().then(() => true, () => false))) return; // It is gone again.
  const now = get().pages;
  set({ pages: before });
  onPageList(now);
  saveAll();
  for (const page of now) void onPageSaved(page.name, page.revision);
  for (const name of Object.keys(get().docs)) {
    void server().request<RunState>("state", { name }).then((run) => changeDoc(name, { run }), () => undefined);
  }
}

function onEvent(event: StudioEvent): void {
  if (event.event === "run") applyRunState(event.name, event.state);
  else if (event.event === "project") onPageList(event.pages);
  else if (event.event === "kept" && event.window !== server().window) onConflictCopy(event.name, event.kept);
  else if (event.event === "page" && event.window !== server().window) void onPageSaved(event.name, event.revision);
}

function onPageList(pages: PageInfo[]): void {
  const known = new Set(get().pages.map((page) => page.name));
  const there = new Set(pages.map((page) => page.name));
  set({ pages });
  for (const open of Object.values(get().docs)) {
    if (there.has(open.name) || movedHere.has(open.name)) continue;
    const now = pages.find((page) => !known.has(page.name) && page.revision === open.revision && !get().docs[page.name]);
    if (now) {
      moveDoc(open.name, now);
      notify("info", `The page ${open.name} is called ${now.name} now: it was renamed elsewhere.`, { page: now.name });
    } else void onPageGone(open.name);
  }
}

/** A page is no longer listed. Unsent edits, or edits in flight, create it again. */
async function onPageGone(name: string): Promise<void> {
  const unsent = doc(name)?.page !== doc(name)?.sent;
  const arrived = unsent && (await saveNow(name));
  const again = arrived && (await server().request<Opened>("open", { name }).then(() => true, () => false));
  if (unsent && (again || !arrived)) {
    notify("warning", `The page ${name} was removed elsewhere. Your edits make it again.`, { page: name });
    return;
  }
  if (get().active === name) set({ dialog: null }); // it would refer to another page
  close(name);
  removeDraft(name);
  notify("warning", `The page ${name} was removed elsewhere.`, { page: null });
}

/** Another window saved a page: load it, unless there are unsent edits here. */
async function onPageSaved(name: string, revision: string): Promise<void> {
  const here = doc(name);
  if (!here || here.revision === revision || here.page !== here.sent) return;
  const opened = await attempt(() => server().request<Opened>("open", { name }));
  const now = doc(name);
  if (!opened || !now || now.page !== now.sent || now.revision !== here.revision) return;
  const history = record(now.history, CHANGED_ELSEWHERE, opened.page);
  const ids = new Set(opened.page.blocks.map((block) => block.id));
  const blocks = new Set([...now.blocks].filter((id) => ids.has(id)));
  const { page, checked } = opened;
  changeDoc(name, { page, sent: page, revision: opened.revision, checked, history, ...NOTHING_SELECTED, blocks });
  saveDraft(doc(name)!);
}

/** Another window's save conflicted with one of this window, and was stored as a copy. */
function onConflictCopy(name: string, kept: string): void {
  if (!doc(name) || !FEATURES.conflicts) return;
  notify("warning", `Another window changed ${name} at the same time. The page here stands; the other is kept as “${kept}”.`, { page: name });
}

/** Add a tab at its place in `order`, before tabs that were opened since. */
function addTab(name: string, order: string[]): void {
  set(({ tabs }) => ({ tabs: [...order.filter((tab) => tab === name || tabs.includes(tab)), ...tabs.filter((tab) => !order.includes(tab))] }));
}

export async function open(name: string): Promise<boolean> {
  if (!(await loadPage(name))) return false;
  set((state) => ({ tabs: state.tabs.includes(name) ? state.tabs : [...state.tabs, name], active: name, start: false }));
  return true;
}

/** Load a page; simultaneous calls share one request. */
async function loadPage(name: string): Promise<boolean> {
  if (get().docs[name]) return true;
  const request = opening.get(name) ?? fetchPage(name).finally(() => opening.delete(name));
  opening.set(name, request);
  return request;
}

async function fetchPage(name: string): Promise<boolean> {
  let opened: Opened;
  try {
    opened = await server().request<Opened>("open", { name });
  } catch (error) {
    notifyError(error, { page: name });
    return false;
  }
  const { page, checked, run } = opened;
  const { history, base, obsolete } = restoreHistory(name, opened);
  const shown = pageAt(history);
  set((state) => ({
    docs: { ...state.docs, [name]: { name, page: shown, history, revision: base, sent: page, checked, run, saving: "saved", ...NOTHING_SELECTED } },
  }));
  discardUnsent(name, obsolete);
  saveDraft(doc(name)!);
  if (shown !== page) scheduleSave(name);
  return true;
}

export function close(name: string): void {
  set((state) => {
    const k = state.tabs.indexOf(name);
    const tabs = state.tabs.filter((tab) => tab !== name);
    const active = state.active === name ? (tabs[Math.min(k, tabs.length - 1)] ?? null) : state.active;
    return { tabs, active, start: state.start || !tabs.length };
  });
  // Unsent edits stay in the store until they are saved.
  void saveAfterParsing(name).then((saved) => {
    if (saved && !get().tabs.includes(name)) dropDoc(name);
  });
}

function dropDoc(name: string): void {
  set((state) => {
    const { [name]: _, ...docs } = state.docs;
    return { docs };
  });
}

/** Create a page. With `page`, a used name is replaced by a similar unused one. */
export async function newPage(page?: Page, wanted?: string): Promise<string | null> {
  const args = page ? { page: { ...page, name: wanted ?? page.name } } : wanted ? { name: wanted } : {};
  const made = await attempt(() => server().request<PageInfo>("new", args));
  return made && (await open(made.name)) ? made.name : null;
}

/** Rename a page; the reason if that failed, else null. */
export async function renamePage(name: string, to: string): Promise<string | null> {
  if (name === to) return null;
  await saveAfterParsing(name);
  movedHere.add(name);
  try {
    const info = await exclusively(name, () => server().request<PageInfo>("rename", { name, to }));
    moveDoc(name, info);
    return null;
  } catch (error) {
    return messageOf(error);
  } finally {
    movedHere.delete(name);
  }
}

function moveDoc(name: string, info: PageInfo): void {
  set((state) => {
    const { [name]: old, ...docs } = state.docs;
    if (old) docs[info.name] = { ...old, name: info.name };
    const tabs = state.tabs.map((tab) => (tab === name ? info.name : tab));
    return { docs, tabs, active: state.active === name ? info.name : state.active };
  });
  removeDraft(name);
  const now = doc(info.name);
  if (!now) return;
  saveDraft(now);
  if (now.page !== now.sent) scheduleSave(info.name); // edits made during the rename
}

export async function removePage(name: string): Promise<void> {
  await saveNow(name);
  movedHere.add(name);
  const gone = await attempt(() => exclusively(name, () => server().request("remove", { name })), { page: name });
  movedHere.delete(name);
  if (gone === null) return;
  removeDraft(name);
  removedPages.push(name);
  set((state) => {
    const { [name]: _, ...docs } = state.docs;
    const tabs = state.tabs.filter((tab) => tab !== name);
    const pages = state.pages.filter((page) => page.name !== name);
    return { docs, tabs, pages, active: state.active === name ? (tabs[0] ?? null) : state.active, start: state.start || !tabs.length };
  });
  notify("info", `${name} was removed. “Bring back” on the screen with the gallery and the pages undoes it.`, { page: null });
}

export async function restorePage(name: string): Promise<void> {
  const info = await attempt(() => server().request<PageInfo>("bring_back", { name }));
  if (!info) return;
  if (removedPages.includes(name)) removedPages.splice(removedPages.lastIndexOf(name), 1);
  await open(info.name);
}

export async function openGalleryPage(name: string): Promise<void> {
  if (!FEATURES.gallery) return;
  const found = await attempt(() => server().request<{ page: Page }>("gallery", { name }));
  if (found) await newPage(found.page, found.page.name);
}
