// The server's messages, as in docs/contributing/studio-protocol.md.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** One block of a page: an op of the catalogue under an id. */
export interface Block {
  id: string;
  op: string;
  at?: [number, number];
  values?: Record<string, Json>;
  in?: Record<string, string | string[]>;
  attrs?: Record<string, Json>;
  hidden?: string[];
}

/** Text on a page; with a size it is a frame around blocks. */
export interface Note {
  text: string;
  at?: [number, number];
  size?: [number, number];
}

export interface Page {
  format: "rowgrad-page";
  version: 1;
  name: string;
  blocks: Block[];
  notes?: Note[];
  trends?: { of: string; at?: number[] }[]; // numbers to draw over the runs
}

export interface Pin {
  name: string;
  type: string;
  host: boolean;
  many: boolean;
  ref: boolean;
  optional: boolean;
  role: string;
  dtypes: string[];
}

export interface OpRecord {
  name: string;
  snake_name: string;
  aliases: string[];
  category: string;
  layer: string;
  tensorflow: boolean;
  doc: string;
  example: string;
  inputs: Pin[];
  outputs: Pin[];
  attrs: Record<string, { default: Json; choices: Json[] }>;
  differentiable: string[];
  linear: string[];
  runs: boolean;
  traced: boolean;
}

export interface Info {
  text: string;
  kind: "tensor" | "sparse" | "feed" | "operation";
  dtype: string | null;
  shape: (number | null)[] | null;
  ref?: boolean;
}

/** A known fix of an error. The verb `fix` applies it to the page as it is then. */
export interface Fix {
  title: string;
  action: string;
  block: string;
  pin: string;
  value: Json;
  end: string | null;
}

export interface Fault {
  kind: string;
  message: string;
  text: string;
  pin: string | null;
  fixes?: Fix[];
  block?: string | null;
  place?: string | null;
}

export interface Checked {
  blocks: Record<string, { outputs: Record<string, Info | Info[]>; inputs: Record<string, Info | Info[]> }>;
  errors: Record<string, Fault>;
  waiting: string[];
  ghosts?: string[]; // blocks of ops that the catalog lacks
  partial?: Record<string, string[]>; // fetches that sessions run without: they need a block that the catalog lacks
  sessions: string[];
  recipes: Record<string, string>;
}

export interface Result {
  steady: boolean; // every run computes the same
  info: Info;
  run: number;
  preview: string;
}

export type Phase = "idle" | "running" | "paused" | "done" | "stopped" | "failed";
export type Mode = "once" | "steps" | "rate" | "flat";

export interface RunState {
  phase: Phase;
  run: number;
  done: number; // steps since the last start
  serial: number; // increases with each state
  saved: Snapshot | null; // the latest one of an earlier start of Studio, until the page runs
  steps: number | null;
  mode: Mode | null;
  rate: number | null;
  per_second: number | null;
  seconds: number;
  engine: string;
  error: Fault | null;
  message?: string | null;
  revision: string | null;
  recipes: Record<string, string>;
  costs: Record<string, { seconds: number; bytes: number }>;
  results: Record<string, Record<string, Result | Result[]>>;
  carried: string[];
  left_out?: string[]; // blocks that a run without a session block could not compute
}

/** What a run without a session block needs the user to agree to. */
export interface Question {
  variables: string[];
  fixes: Fix[];
}

export interface PageInfo {
  name: string;
  revision: string;
  blocks: number;
  modified: number;
  error?: string | null;
}

export interface Engine {
  name: string;
  version: string | null;
  available: boolean;
  why: string | null;
}

export interface GalleryEntry {
  name: string;
  title: string;
  blocks: number;
  text: string;
  reference: boolean; // a worked example of the manual
}

export interface Hello {
  version: string;
  project: { name: string; folder: string; pages: PageInfo[] };
  catalog: OpRecord[];
  dtypes: string[];
  engines: Engine[];
  limits: Record<string, number>;
  gallery: GalleryEntry[];
  tour: Tour;
}

/** A tour on the canvas: a block of one op is placed, gets values, and runs. */
export interface Tour {
  op: string;
  steps: { kind: "place" | "type" | "run" | "read"; title: string; text: string; values?: Record<string, string> }[];
}

export interface Opened {
  page: Page;
  revision: string;
  checked: Checked;
  run: RunState;
}

/** A field of a block that both windows changed, with its values as text. */
export interface ConflictField {
  key: string;
  block: string;
  kind: string;
  name: string;
  mine: string;
  theirs: string;
}

export interface Conflict {
  kept: string;
  fields?: ConflictField[];
  revision: string;
  page: Page;
  checked: Checked;
}

/** `merged` is the saved page if it also has changes of others; `sent` is the revision of the page without them. */
export type Saved = { revision: string; checked: Checked; merged?: Page; sent?: string; conflict?: undefined } | { conflict: Conflict };

export interface Cells {
  info: Info;
  at: number[];
  rows: [number, number];
  columns: [number, number];
  of: [number, number]; // all rows and columns
  cells: string[][];
  run: number | null;
  stale: boolean;
}

export interface HeatMap {
  info: Info;
  rows: number;
  columns: number;
  step: [number, number]; // the stride of shown rows and columns
  low: number | null;
  high: number | null;
  cells: (number | null)[][];
}

export interface Typed {
  value: Json;
  text: string;
  info: Info;
}

export interface Trace {
  outputs: string[];
  inputs: string[];
  pairs: [number, number][];
  total: number;
  cut: boolean;
}

/** A result whose rows can be explained, and the op that computes it. */
export interface ExplainedResult {
  block: string;
  pin: string;
  entry: number | null;
  op: string;
  sums: boolean; // or else each row is computed from the same row of the operands
}

export interface Scale {
  divides: boolean;
  by: string;
  text: string;
}

/** One row that is added up; `place` is the position of its id, `column` that of a product in an inner product. */
export interface SumTerm {
  term: number;
  pin: string;
  row: number;
  place: number | null;
  column: number | null;
  factor: string;
  weight: number | null;
  id: number | null; // that named the row
  reason: string; // of the factor; empty if the row is added as it is
  scales: Scale[];
  values: string[];
  product: string[];
}

/** A sum of terms, by number, and of sums; of a long one only the first parts are in `of`. */
export interface SumTree {
  from_zero: boolean;
  of: (number | SumTree)[];
  count: number;
  size: number;
  total: string[] | null;
}

export interface Addition {
  path: number[];
  item: number;
  total: string[];
}

/** One row of a result as a sum, computed in the order and with the rounding of the op. */
export interface RowSum {
  op: string;
  pin: string;
  row: number;
  rows: number;
  dtype: string;
  sum_dtype: string;
  order: string | null;
  orders: string[];
  origins: Record<string, { block: string; pin: string; entry: number | null; inner: string }>;
  kind: "sum" | "copy" | "zero" | "by row";
  columns: [number, number];
  of_columns: number;
  total_terms: number;
  terms: SumTerm[];
  parts: { columns: [number, number]; tree: SumTree; additions: Addition[]; total_additions: number }[];
  then: Scale[];
  result: string[];
  sum: string[];
  differing: number; // columns in which the sum has other bits than the result
}

export interface ScatterStep {
  place: number;
  to: number;
  pin: string;
  from: number;
  factor: string;
  weight: number | null;
  id: number | null;
  reason: string;
  product: string[];
  total: string[]; // of the run that the term belongs to
  path: number[]; // of that run in the tree of sums
}

export interface Scatter {
  op: string;
  pin: string;
  sources: { pin: string; rows: number }[];
  rows: number;
  columns: number;
  of_columns: number;
  named: number;
  ends: { row: number; terms: number; sum: string[] }[];
  steps: ScatterStep[];
  total: number;
  order: string | null;
  orders: string[];
}

export interface SpyAxis {
  pins: string[];
  rows: number;
  cells: number;
  named: number;
  degrees: number[]; // rows with (2^(k-1), 2^k] pairs
  hot: [number, number][]; // row, pairs
}

export interface Spy {
  op: string;
  total: number;
  table: "inputs" | "outputs";
  across: SpyAxis;
  down: SpyAxis;
  cells: [number, number, number][]; // down, across, pairs
  most: number;
}

/** The rows of a Variable that each step changed, on a grid of rows and steps. A distance that is no number is null. */
export interface RowChanges {
  variables: { variable: string; dtype: string; shape: number[]; steps: number; recorded: boolean }[];
  variable: string;
  picture: {
    rows: number;
    steps: number; // that are recorded, from step `first` to `last` of the page
    first: number;
    last: number;
    down: number; // cells
    across: number;
    cells: [number, number, number, number | null][]; // down, across, changes, distance
    most: number | null; // the longest distance of a cell
    changed: number; // rows
    hot: [number, number, number | null][]; // row, steps that changed it, distance in total
  } | null;
}

/** Results of one step in two ways, with the elements whose bits differ. */
export interface Comparison {
  differing: number; // results
  results: {
    block: string;
    pin: string;
    entry: number | null;
    dtype: string;
    shape: number[];
    elements: number;
    differing: number;
    greatest: number | null;
    cells: { at: number[]; a: string; b: string }[];
    other: string | null; // dtype and shape of the second, if they are not those of the first
  }[];
}

export interface Snapshot {
  id: string;
  label: string;
  run: number;
  when: number;
}

export interface Series {
  block: string;
  pin: string;
  entry?: number;
  at: number[];
}

export interface Trend {
  series: { label: string; points: [number, number | null][] }[];
  run: number;
}

export interface ImportReport {
  page: Page | null;
  pages: Page[];
  report: ReportLine[];
}

export interface ReportLine {
  level: string;
  place: string;
  message: string;
}

export type StudioEvent =
  | { event: "run"; name: string; state: RunState }
  | { event: "page"; name: string; revision: string; window: string }
  | { event: "kept"; name: string; kept: string; window: string }
  | { event: "project"; pages: PageInfo[] }
  | { event: "beat" };

/** A verb failed; the message is the server's. */
export class RequestError extends Error {
  constructor(readonly fault: Fault) {
    super(fault.message);
    this.name = fault.kind;
  }
}

/** The message of an error, the server's if a verb failed. */
export function messageOf(error: unknown): string {
  if (error instanceof RequestError) return error.fault.message;
  return error instanceof Error ? error.message : String(error);
}

/** A unique name. `crypto.randomUUID` is missing on pages served without encryption. */
export function windowName(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** How verbs reach the server: over HTTP in a browser, through the kernel in a notebook. */
export interface Transport {
  readonly window: string;
  request<T>(verb: string, args?: Record<string, unknown>): Promise<T>;
  send<T>(verb: string, args: Record<string, string>, file: Blob): Promise<T>;
  listen(onEvent: (event: StudioEvent) => void, onConnection: (connected: boolean, signedOut?: boolean) => void): () => void;
}
