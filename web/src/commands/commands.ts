// Every command by name: keys, buttons and the command menu are made from this table.

import { flushSync } from "react-dom";
import type { StudioState, Theme } from "../app/store";
import { doc, front, get, set } from "../app/store";
import type { Alignment } from "../canvas/layout";
import { align, arrange, frameAround } from "../canvas/layout";
import { canvasView } from "../canvas/view";
import { copy, copyParameters, duplicate, localClipboard, pasteParameters } from "../clipboard/clipboard";
import { change, redo, removeSelected, select, selectedBlocks, undo, viewport } from "../page/actions";
import * as edit from "../page/edit";
import { blockOf, notesOf } from "../page/page";
import { saveAfterParsing } from "../project/autosave";
import { close, newPage, open, removePage, removedPages, restorePage } from "../project/pages";
import { pause, reset, resume, run, snapshot, stop } from "../run/runs";

export interface Command {
  id: string;
  title: string;
  group: string;
  keys?: string; // "Ctrl+Shift+z"; Ctrl is Command on a Mac
  ready?: () => boolean;
  run: () => void | Promise<void>;
}

const opened = () => front() !== null;
const selected = () => (front()?.blocks.size ?? 0) > 0;
const copyable = () => selected() || (front()?.notes.size ?? 0) > 0;
const anything = () => copyable() || (front()?.wires.size ?? 0) > 0;
const several = () => (front()?.blocks.size ?? 0) > 1;
const one = () => front()?.blocks.size === 1;
const only = () => [...(doc()?.blocks ?? [])][0]!;

function alignSelected(how: Alignment): () => void {
  return () => {
    const blocks = selectedBlocks();
    change(`align ${how}`, (page) => edit.move(page, align(blocks, get().catalog, how)));
  };
}

function stepTab(by: number): void {
  const { tabs, active } = get();
  if (tabs.length) set({ active: tabs[(tabs.indexOf(active ?? "") + by + tabs.length) % tabs.length]!, start: false });
}

const THEMES: Theme[] = ["system", "light", "dark"];

export const COMMANDS: Command[] = [
  { id: "commands", title: "Search blocks and commands", group: "Go", keys: "Ctrl+k", ready: () => FEATURES.commandMenu, run: () => set({ dialog: { kind: "commands" } }) },
  { id: "start", title: "Gallery and pages", group: "Go", keys: "Ctrl+Shift+g", run: () => set({ start: true }) },
  { id: "next-tab", title: "Next page", group: "Go", keys: "Alt+PageDown", ready: () => FEATURES.tabs, run: () => stepTab(1) },
  { id: "previous-tab", title: "Previous page", group: "Go", keys: "Alt+PageUp", ready: () => FEATURES.tabs, run: () => stepTab(-1) },
  { id: "new-page", title: "New page", group: "Page", keys: "Alt+n", run: async () => void (await newPage()) },
  { id: "close-page", title: "Close page", group: "Page", keys: "Alt+w", ready: opened, run: () => close(doc()!.name) },
  { id: "rename-page", title: "Rename page", group: "Page", ready: opened, run: () => set({ dialog: { kind: "rename", page: doc()!.name } }) },
  {
    id: "copy-page",
    title: "Copy page",
    group: "Page",
    ready: opened,
    run: async () => void (await newPage(doc()!.page, doc()!.name)),
  },
  {
    id: "remove-page",
    title: "Remove page",
    group: "Page",
    ready: opened,
    run: () => removePage(doc()!.name),
  },
  {
    id: "bring-back",
    title: "Restore the page removed last",
    group: "Page",
    ready: () => removedPages.length > 0,
    run: () => restorePage(removedPages.at(-1)!),
  },
  { id: "save", title: "Save now", group: "Page", keys: "Ctrl+s", ready: opened, run: async () => void (await saveAfterParsing(doc()!.name)) },
  { id: "export", title: "Export: script, JSON, picture, command", group: "Page", keys: "Ctrl+e", ready: () => FEATURES.export && opened(), run: () => set({ dialog: { kind: "export" } }) },
  { id: "import", title: "Import files (.json, .svg, .dat)", group: "Page", keys: "Ctrl+o", ready: () => FEATURES.import, run: () => { window.dispatchEvent(new CustomEvent("rowgrad:import")); } },

  { id: "undo", title: "Undo", group: "Edit", keys: "Ctrl+z", ready: () => FEATURES.undo && (front()?.history.now ?? 0) > 0, run: undo },
  { id: "redo", title: "Redo", group: "Edit", keys: "Ctrl+Shift+z", ready: () => FEATURES.undo && (front()?.history.now ?? 0) < (front()?.history.steps.length ?? 1) - 1, run: redo },
  { id: "redo-y", title: "Redo (Ctrl+Y)", group: "Edit", keys: "Ctrl+y", ready: () => FEATURES.undo && (front()?.history.now ?? 0) < (front()?.history.steps.length ?? 1) - 1, run: redo },
  { id: "copy", title: "Copy", group: "Edit", keys: "Ctrl+c", ready: () => FEATURES.copyPaste && copyable(), run: copy },
  { id: "cut", title: "Cut", group: "Edit", keys: "Ctrl+x", ready: () => FEATURES.copyPaste && copyable(), run: async () => { await copy(); removeSelected(); } },
  { id: "duplicate", title: "Duplicate", group: "Edit", keys: "Ctrl+d", ready: () => FEATURES.copyPaste && copyable(), run: duplicate },
  { id: "copy-parameters", title: "Copy the block's parameters", group: "Edit", ready: () => FEATURES.copyPaste && one(), run: copyParameters },
  { id: "paste-parameters", title: "Paste parameters onto the selected blocks", group: "Edit", ready: () => FEATURES.copyPaste && selected() && localClipboard.text !== "", run: pasteParameters },
  { id: "delete", title: "Delete", group: "Edit", keys: "Delete", ready: anything, run: removeSelected },
  { id: "delete-back", title: "Delete (Backspace)", group: "Edit", keys: "Backspace", ready: anything, run: removeSelected },
  { id: "select-all", title: "Select all", group: "Edit", keys: "Ctrl+a", ready: () => FEATURES.multiSelect && opened(), run: () => select(doc()!.page.blocks.map((block) => block.id), notesOf(doc()!.page).keys()) },
  { id: "wire", title: "Wire the selected block", group: "Edit", keys: "w", ready: () => FEATURES.wires && one(), run: () => set({ dialog: { kind: "wire", block: only() } }) },
  { id: "edit-block", title: "Edit values of the selected block", group: "Edit", keys: "Enter", ready: one, run: () => inInspector("rowgrad:inspect") },
  { id: "rename-block", title: "Rename the selected block", group: "Edit", keys: "F2", ready: () => FEATURES.rename && one(), run: () => inInspector("rowgrad:rename") },
  { id: "note", title: "Add a text note", group: "Edit", keys: "n", ready: () => FEATURES.notes && opened(), run: () => addNote(false) },
  { id: "edit-note", title: "Edit the selected note", group: "Edit", ready: () => front()?.notes.size === 1, run: () => set({ dialog: { kind: "note", k: [...doc()!.notes][0]! } }) },
  { id: "frame", title: "Frame the selected blocks", group: "Edit", keys: "f", ready: () => FEATURES.frames && selected(), run: () => addNote(true) },
  { id: "flip", title: "Flip to gradient", group: "Edit", keys: "g", ready: () => FEATURES.flip && !!front()?.page.blocks.length, run: () => set({ dialog: { kind: "flip" } }) },

  { id: "layout", title: "Automatic layout", group: "Arrange", keys: "Ctrl+Shift+l", ready: () => FEATURES.layout && opened(), run: () => { change("automatic layout", (page) => arrange(page, get().catalog, several() ? doc()!.blocks : undefined)); setTimeout(canvasView.fit, 50); } },
  { id: "align-left", title: "Align left", group: "Arrange", keys: "Alt+ArrowLeft", ready: () => FEATURES.align && several(), run: alignSelected("left") },
  { id: "align-right", title: "Align right", group: "Arrange", keys: "Alt+ArrowRight", ready: () => FEATURES.align && several(), run: alignSelected("right") },
  { id: "align-top", title: "Align top", group: "Arrange", keys: "Alt+ArrowUp", ready: () => FEATURES.align && several(), run: alignSelected("top") },
  { id: "align-bottom", title: "Align bottom", group: "Arrange", keys: "Alt+ArrowDown", ready: () => FEATURES.align && several(), run: alignSelected("bottom") },
  { id: "align-middle", title: "Align middles", group: "Arrange", ready: () => FEATURES.align && several(), run: alignSelected("middle") },
  { id: "align-centre", title: "Align centres", group: "Arrange", ready: () => FEATURES.align && several(), run: alignSelected("centre") },
  { id: "spread-across", title: "Spread evenly across", group: "Arrange", ready: () => FEATURES.align && several(), run: alignSelected("across") },
  { id: "spread-down", title: "Spread evenly down", group: "Arrange", ready: () => FEATURES.align && several(), run: alignSelected("down") },

  { id: "fit", title: "Show the whole page", group: "View", keys: "Ctrl+0", ready: () => FEATURES.zoom && opened(), run: () => canvasView.fit() },
  { id: "zoom-in", title: "Zoom in", group: "View", keys: "Ctrl+=", ready: () => FEATURES.zoom && opened(), run: () => canvasView.zoom(1.25) },
  { id: "zoom-out", title: "Zoom out", group: "View", keys: "Ctrl+-", ready: () => FEATURES.zoom && opened(), run: () => canvasView.zoom(0.8) },
  { id: "zoom-actual", title: "Zoom to 100 %", group: "View", keys: "Ctrl+1", ready: () => FEATURES.zoom && opened(), run: () => canvasView.actual() },
  { id: "palette", title: "Show or hide the palette", group: "View", keys: "Ctrl+b", ready: () => FEATURES.palette, run: () => set((s) => ({ paletteOpen: !s.paletteOpen })) },
  { id: "find-block", title: "Search the palette", group: "View", keys: "/", ready: () => FEATURES.paletteSearch, run: () => mounted({ paletteOpen: true }, "rowgrad:search-palette") },
  { id: "inspector", title: "Show or hide the inspector", group: "View", keys: "Ctrl+i", run: () => set((s) => ({ inspectorOpen: !s.inspectorOpen })) },
  { id: "bottom", title: "Show or hide the results", group: "View", keys: "Ctrl+j", run: () => set((s) => ({ bottomOpen: !s.bottomOpen })) },
  { id: "minimap", title: "Show or hide the minimap", group: "View", keys: "m", ready: () => FEATURES.minimap, run: () => set((s) => ({ minimap: !s.minimap })) },
  { id: "snap", title: "Snap to the grid", group: "View", ready: () => FEATURES.gridSnap, run: () => set((s) => ({ snapping: !s.snapping })) },
  { id: "theme", title: "Theme: light, dark, or like the system", group: "View", keys: "Ctrl+Shift+d", ready: () => FEATURES.theme, run: () => set((s) => ({ theme: THEMES[(THEMES.indexOf(s.theme) + 1) % 3]! })) },
  { id: "help", title: "Help for the selected block", group: "View", keys: "F1", ready: () => FEATURES.help, run: help },
  { id: "keys", title: "Keys", group: "View", keys: "?", ready: () => FEATURES.keyboard, run: () => set({ dialog: { kind: "keys" } }) },
  ...(["results", "trend", "map", "trace", "messages", "history"] as const).map((tab, k): Command => ({
    id: `tab-${tab}`, title: `Show ${tab === "map" ? "the heat map" : tab === "trend" ? "the trend" : tab}`, group: "View", keys: `Alt+${k + 1}`,
    run: () => set({ bottom: tab, bottomOpen: true }),
  })),

  { id: "run", title: "Run", group: "Run", keys: "Ctrl+Enter", ready: () => FEATURES.run && opened(), run: () => run("once") },
  { id: "run-steps", title: "Run N steps, then pause", group: "Run", keys: "Ctrl+Shift+Enter", ready: () => FEATURES.steps && opened(), run: () => run("steps") },
  { id: "run-rate", title: "Run every … Hz, at the chosen rate", group: "Run", keys: "Alt+r", ready: () => FEATURES.rate && opened(), run: () => run("rate") },
  { id: "run-flat", title: "Run continuously", group: "Run", keys: "Alt+f", ready: () => FEATURES.run && opened(), run: () => run("flat") },
  { id: "pause", title: "Pause", group: "Run", keys: "Alt+p", ready: () => FEATURES.pause && front()?.run?.phase === "running", run: async () => void (await pause()) },
  { id: "resume", title: "Resume", group: "Run", keys: "Alt+g", ready: () => FEATURES.pause && front()?.run?.phase === "paused", run: async () => void (await resume()) },
  { id: "stop", title: "Stop", group: "Run", keys: "Alt+s", ready: () => FEATURES.run && ["running", "paused"].includes(front()?.run?.phase ?? ""), run: async () => void (await stop()) },
  { id: "reset", title: "Reset the Variables", group: "Run", keys: "Alt+0", ready: () => FEATURES.run && opened(), run: async () => void (await reset()) },
  { id: "snapshot", title: "Take a snapshot of the Variables", group: "Run", ready: () => FEATURES.snapshots && opened(), run: () => snapshot() },
  { id: "snapshots", title: "Snapshots …", group: "Run", ready: () => FEATURES.snapshots && opened(), run: () => set({ dialog: { kind: "snapshots" } }) },
];

function inInspector(event: string): void {
  mounted({ inspectorOpen: true }, event);
}

/** Show a panel and tell it to focus a field. It is mounted before the next key arrives, which belongs to the field. */
function mounted(panel: Partial<StudioState>, event: string): void {
  flushSync(() => set(panel));
  window.dispatchEvent(new CustomEvent(event));
}

function addNote(frame: boolean): void {
  const open = doc()!;
  const k = notesOf(open.page).length;
  const note = frame ? frameAround(selectedBlocks(), get().catalog, "Frame") : { text: "Note", at: viewport.centre() };
  change(frame ? "add a frame" : "add a note", (page) => edit.addNote(page, note));
  select([], [k]);
  set({ dialog: { kind: "note", k } });
}

function help(): void {
  const open = doc();
  const block = open && open.blocks.size ? blockOf(open.page, only()) : undefined;
  const found = block && get().catalog.find(block.op);
  set({ dialog: found ? { kind: "help", op: found.name } : { kind: "keys" } });
}

export function isReady(command: Command): boolean {
  return command.ready?.() ?? true;
}

export function command(id: string): Command {
  const found = COMMANDS.find((known) => known.id === id);
  if (!found) throw new Error(`there is no command ${id}`);
  return found;
}

export function perform(id: string): void {
  const found = command(id);
  if (isReady(found)) void found.run();
}

/** Commands beside the table: one for each page that can be opened. */
export function pageCommands(): Command[] {
  return get().pages.map((page) => ({ id: `open ${page.name}`, title: `Open page ${page.name}`, group: "Pages", run: async () => void (await open(page.name)) }));
}
