// The store: everything the page shows. Views read it; actions in the feature folders change it.

import { create } from "zustand";
import type { History } from "../history/history";
import type { End } from "../page/page";
import type { Catalog } from "../palette/catalog";
import { makeCatalog } from "../palette/catalog";
import type { Checked, ConflictField, Fix, Hello, Mode, Page, PageInfo, Question, ReportLine, RowSum, RunState, Transport } from "../transport/protocol";

export type Saving = "saved" | "waiting" | "saving" | "failed";

/** An open page: its current state, the state the server has, and the server's validation of it. */
export interface Doc {
  name: string;
  page: Page;
  history: History;
  revision: string; // of the server's page on which ours is based
  sent: Page; // the page of that revision
  checked: Checked;
  run: RunState | null;
  saving: Saving;
  blocks: ReadonlySet<string>; // selected
  notes: ReadonlySet<number>;
  wires: ReadonlySet<string>;
}

/** A wire being drawn; `takes` has the server's answer for every pin it could connect to. */
export interface Drag {
  end: End;
  side: "from" | "to";
  takes: Record<string, string | null> | null;
}

/** What a message is about, and so what solves it: a run, a typed value, a wire that was rejected, a save. */
export type About = "run" | "literal" | "wire" | "save";

export interface Message {
  key: number;
  level: "error" | "warning" | "info";
  text: string;
  page: string | null;
  block: string | null;
  pin: string | null;
  about: About | null;
  fixes: Fix[];
  when: number;
  count: number;
}

/** A save that could not be merged: the page sent, the revision it began from, and the fields to decide. */
export interface Merge {
  base: string;
  mine: Page;
  fields: ConflictField[];
}

export type Dialog =
  | { kind: "commands" }
  | { kind: "wire"; block: string }
  | { kind: "value"; block: string; pin: string }
  | { kind: "sparse"; block: string }
  | { kind: "flip" }
  | { kind: "export" }
  | { kind: "import"; name: string; report: ReportLine[]; page: Page }
  | { kind: "conflict"; name: string; kept: string; merge?: Merge }
  | { kind: "ask-run"; page: string; mode: Mode; question: Question }
  | { kind: "snapshots" }
  | { kind: "help"; op: string }
  | { kind: "keys" }
  | { kind: "note"; k: number }
  | { kind: "rename"; page: string };

/** What a context menu is about. */
export type MenuTarget =
  | { kind: "canvas" }
  | { kind: "block"; block: string }
  | { kind: "note"; k: number }
  | { kind: "wire"; wire: string }
  | { kind: "pin"; block: string; pin: string; side: "from" | "to" };

/** The search for a block to place at a point: any block, one that takes a wire, or one to insert on a wire. */
export interface Finder {
  at: readonly [number, number]; // in the window
  place: readonly [number, number]; // on the page
  drag: { end: End; side: "from" | "to" } | null;
  wire: string | null;
}

export type BottomTab = "results" | "trend" | "map" | "trace" | "messages" | "history";
export type Theme = "light" | "dark" | "system";

/** A result: an output pin, or one entry of a list pin. */
export interface ResultRef {
  block: string;
  pin: string;
  entry: number | null;
}

export interface StudioState {
  transport: Transport | null;
  embedded: boolean; // in a notebook, which has its own keyboard shortcuts
  hello: Hello | null;
  catalog: Catalog;
  pages: PageInfo[];
  tabs: string[];
  active: string | null;
  docs: Record<string, Doc>;
  start: boolean; // the start screen with the gallery
  connected: boolean;
  signedOut: boolean; // the studio was restarted, and this browser has no access to it yet
  failure: string | null; // why the page cannot be shown at all
  drag: Drag | null;
  dialog: Dialog | null;
  menu: { at: readonly [number, number]; place: readonly [number, number]; target: MenuTarget } | null;
  finder: Finder | null;
  hovered: { wire: string; at: readonly [number, number] } | null; // the wire whose values are shown at a point of the window
  messages: Message[];
  toasts: Message[];
  bottom: BottomTab;
  bottomOpen: boolean;
  paletteOpen: boolean;
  inspectorOpen: boolean;
  narrow: boolean; // too narrow for panels beside the canvas: they cover a part of it while they are open
  sizes: { bottom?: number; inspector?: number; palette?: number }; // of resized panels
  minimap: boolean;
  light: boolean; // a large page, zoomed out: blocks are boxes with a title, wires are strokes
  snapping: boolean;
  theme: Theme;
  shown: ResultRef | null;
  traced: { block: string; inputs: Record<string, number[]>; outputs: Record<string, number[]> } | null;
  explained: { page: string; block: string; sum: RowSum; stale: boolean } | null; // the row that the trace panel explains, for the canvas
  runMode: { steps: number; rate: number; engine: string };
  tour: number | null; // the step of the tour that is shown
}

export const useStudio = create<StudioState>(() => ({
  transport: null,
  embedded: false,
  hello: null,
  catalog: makeCatalog([]),
  pages: [],
  tabs: [],
  active: null,
  docs: {},
  start: false,
  connected: true,
  signedOut: false,
  failure: null,
  drag: null,
  dialog: null,
  menu: null,
  finder: null,
  hovered: null,
  messages: [],
  toasts: [],
  bottom: "results",
  bottomOpen: true,
  paletteOpen: true,
  inspectorOpen: true,
  narrow: false,
  sizes: {},
  minimap: true,
  light: false,
  snapping: true,
  theme: "system",
  shown: null,
  traced: null,
  explained: null,
  runMode: { steps: 10, rate: 5, engine: "numpy" },
  tour: null,
}));

export const get = useStudio.getState;
export const set = useStudio.setState;

export function server(): Transport {
  const { transport } = get();
  if (!transport) throw new Error("there is no server yet");
  return transport;
}

export function doc(name: string | null = get().active): Doc | null {
  return name === null ? null : (get().docs[name] ?? null);
}

/** The visible page: none while the start screen covers it. */
export function front(): Doc | null {
  return get().start ? null : doc();
}

export function changeDoc(name: string, change: Partial<Doc>): void {
  set((state) => {
    const found = state.docs[name];
    return found ? { docs: { ...state.docs, [name]: { ...found, ...change } } } : {};
  });
}

/** The active page, for views. */
export function useDoc(): Doc | null {
  return useStudio((state) => (state.active === null ? null : (state.docs[state.active] ?? null)));
}

const NONE: ReadonlySet<never> = new Set();
export const NOTHING_SELECTED = { blocks: NONE, notes: NONE, wires: NONE };
