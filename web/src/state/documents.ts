// Pages of the project: opening, closing, making, renaming; what the server tells of them.

import { begin, pageAt, record } from "../model/history";
import type { Hello, Opened, Page, PageInfo, StudioEvent, Transport } from "../transport/protocol";
import { Refusal } from "../transport/protocol";
import { makeCatalog } from "../model/catalog";
import { has } from "./features";
import { forget, keepWindow, kept, keptWindow } from "./keeping";
import { attempt, say, sayError } from "./messages";
import { flush, saveAll, saveSoon } from "./saving";
import type { StudioState } from "./store";
import { NOTHING_SELECTED, changeDoc, doc, get, server, set, useStudio } from "./store";

/** Begin: what there is, the tabs of the window before a reload, or the start screen. */
export async function connect(transport: Transport, first: string | null): Promise<void> {
  set({ transport });
  try {
    await greet();
  } catch (error) {
    set({ failure: error instanceof Refusal ? error.fault.message : String(error) });
    return;
  }
  transport.listen(hear, (connected) => {
    const was = get().connected;
    set({ connected });
    if (connected && !was) {
      void greet().catch(() => undefined);
      saveAll();
    }
  });
  const { tabs = [], active = null, ...settings } = keptWindow() as Partial<StudioState>;
  set(settings);
  const there = new Set(get().pages.map((page) => page.name));
  for (const name of [...(tabs as string[]), ...(first ? [first] : [])]) if (there.has(name)) await open(name);
  const front = first ?? active;
  if (front && get().docs[front]) set({ active: front });
  if (!get().tabs.length) {
    if (get().pages.length === 1 && !first) await open(get().pages[0]!.name);
    else set({ start: true });
  }
  useStudio.subscribe(keepWindow);
  window.addEventListener("pagehide", () => {
    for (const open of Object.values(get().docs)) if (open.page !== open.sent) void flush(open.name);
  });
}

async function greet(): Promise<void> {
  const hello = await server().ask<Hello>("hello");
  set({ hello, catalog: makeCatalog(hello.catalog), pages: hello.project.pages, failure: null });
}

function hear(event: StudioEvent): void {
  if (event.event === "run") changeDoc(event.name, { run: event.state });
  else if (event.event === "project") hearProject(event.pages);
  else if (event.event === "page" && event.window !== server().window) void hearPage(event.name, event.revision);
}

function hearProject(pages: PageInfo[]): void {
  set({ pages });
  const there = new Set(pages.map((page) => page.name));
  for (const name of get().tabs) {
    if (!there.has(name)) {
      say("warning", `The page ${name} was renamed or removed elsewhere.`, { page: null });
      close(name);
    }
  }
}

/** Another window has saved a page: take it, unless there are edits here that have not been sent. */
async function hearPage(name: string, revision: string): Promise<void> {
  const here = doc(name);
  if (!here || here.revision === revision || here.page !== here.sent) return;
  const opened = await attempt(() => server().ask<Opened>("open", { name }));
  const now = doc(name);
  if (!opened || !now || now.page !== now.sent) return;
  const history = record(now.history, "changed in another window", opened.page);
  changeDoc(name, { page: opened.page, sent: opened.page, revision: opened.revision, checked: opened.checked, history });
}

export async function open(name: string): Promise<boolean> {
  if (!get().docs[name]) {
    let opened: Opened;
    try {
      opened = await server().ask<Opened>("open", { name });
    } catch (error) {
      sayError(error, { page: name });
      return false;
    }
    const { page, revision, checked, run } = opened;
    const draft = kept(name);
    let history = begin(page);
    let base = revision;
    if (draft) {
      const last = pageAt(draft.history);
      if (draft.revision === revision) history = draft.history;
      else if (JSON.stringify(last) !== JSON.stringify(page)) {
        // Edits of this window that never arrived, on a page that has changed since: the server keeps both.
        const sent = draft.history.steps[0]!.page;
        if (draft.history.now > 0 && sent !== last) {
          history = draft.history;
          base = draft.revision;
        }
      }
    }
    const now = pageAt(history);
    const same = JSON.stringify(now) === JSON.stringify(page);
    if (same) history = { ...history, steps: history.steps.map((step, k) => (k === history.now ? { ...step, page } : step)) };
    const shown = same ? page : now;
    set((state) => ({
      docs: { ...state.docs, [name]: { name, page: shown, history, revision: base, sent: page, checked, run, saving: "saved", ...NOTHING_SELECTED } },
    }));
    if (!same) saveSoon(name);
  }
  set((state) => ({ tabs: state.tabs.includes(name) ? state.tabs : [...state.tabs, name], active: name, start: false }));
  return true;
}

export function close(name: string): void {
  void flush(name).then((saved) => {
    if (!saved && get().tabs.includes(name)) return;
    set((state) => {
      const { [name]: _, ...docs } = state.docs;
      return { docs };
    });
  });
  set((state) => {
    const k = state.tabs.indexOf(name);
    const tabs = state.tabs.filter((tab) => tab !== name);
    const active = state.active === name ? (tabs[Math.min(k, tabs.length - 1)] ?? null) : state.active;
    return { tabs, active, start: !tabs.length };
  });
}

export async function newPage(page?: Page, wanted?: string): Promise<string | null> {
  const given = { ...(page ? { page } : {}), ...(wanted ? { name: wanted } : {}) };
  const made = await attempt(() => server().ask<PageInfo>("new", given));
  return made && (await open(made.name)) ? made.name : null;
}

export async function renamePage(name: string, to: string): Promise<boolean> {
  if (name === to) return true;
  await flush(name);
  const info = await attempt(() => server().ask<PageInfo>("rename", { name, to }), { page: name });
  if (!info) return false;
  set((state) => {
    const { [name]: old, ...docs } = state.docs;
    if (old) docs[info.name] = { ...old, name: info.name, revision: info.revision };
    const tabs = state.tabs.map((tab) => (tab === name ? info.name : tab));
    return { docs, tabs, active: state.active === name ? info.name : state.active };
  });
  forget(name);
  return true;
}

export async function removePage(name: string): Promise<void> {
  await flush(name);
  const gone = await attempt(() => server().ask("remove", { name }), { page: name });
  if (gone === null) return;
  forget(name);
  set((state) => {
    const { [name]: _, ...docs } = state.docs;
    const tabs = state.tabs.filter((tab) => tab !== name);
    return { docs, tabs, active: state.active === name ? (tabs[0] ?? null) : state.active, start: !tabs.length };
  });
  say("info", `${name} was removed. The command “Bring back ${name}” undoes it.`, { page: null });
}

export async function bringBack(name: string): Promise<void> {
  const info = await attempt(() => server().ask<PageInfo>("bring_back", { name }));
  if (info) await open(info.name);
}

export async function openGallery(name: string): Promise<void> {
  if (!has("gallery")) return;
  const found = await attempt(() => server().ask<{ page: Page }>("gallery", { name }));
  if (found) await newPage(found.page, name);
}
