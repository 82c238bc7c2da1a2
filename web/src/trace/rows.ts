// The pairs of a trace, looked up from both sides, and rows by pin.

import type { Trace } from "../transport/protocol";

/** Rows of one pin, or of one entry of a list pin. The size is null if unknown. */
export interface Segment {
  pin: string;
  label: string;
  size: number | null;
}

export interface Rows {
  sources: Map<number, number[]>; // of an output row
  targets: Map<number, number[]>; // of an input row
  lastOutput: number;
  lastInput: number;
}

export function rowsOf(trace: Pick<Trace, "pairs">): Rows {
  const sources = new Map<number, Set<number>>();
  const targets = new Map<number, Set<number>>();
  let lastOutput = -1;
  let lastInput = -1;
  for (const [to, from] of trace.pairs) {
    put(sources, to, from);
    put(targets, from, to);
    lastOutput = Math.max(lastOutput, to);
    lastInput = Math.max(lastInput, from);
  }
  return { sources: listed(sources), targets: listed(targets), lastOutput, lastInput };
}

/** A row that occurs twice, as an id may, is listed once. */
function put(into: Map<number, Set<number>>, key: number, row: number): void {
  const found = into.get(key);
  if (found) found.add(row);
  else into.set(key, new Set([row]));
}

function listed(rows: Map<number, Set<number>>): Map<number, number[]> {
  return new Map([...rows].map(([key, found]) => [key, [...found]]));
}

/** The output row that most rows feed, but of few enough to be read: what is explained before the user chooses. */
export function busiestRow(trace: Pick<Trace, "pairs">, most = 8): number | null {
  const { sources } = rowsOf(trace);
  let found: number | null = null;
  for (const [row, { length }] of sources) {
    const best = found === null ? 0 : sources.get(found)!.length;
    if (found === null || (length <= most && (length > best || best > most))) found = row;
  }
  return found;
}

/** The pin of a row: rows are numbered through all pins in order. */
export function placeOf(segments: readonly Segment[], row: number): { segment: Segment; row: number } | null {
  let first = 0;
  for (const [k, segment] of segments.entries()) {
    const isLast = k === segments.length - 1;
    if (isLast || (segment.size !== null && row < first + segment.size)) return { segment, row: row - first };
    if (segment.size === null) return null;
    first += segment.size;
  }
  return null;
}

/** The number of a pin's first row, counted through all pins; null if an earlier size is unknown. */
export function firstRow(segments: readonly Segment[], label: string): number | null {
  let first = 0;
  for (const segment of segments) {
    if (segment.label === label) return first;
    if (segment.size === null) return null;
    first += segment.size;
  }
  return null;
}

/** The number of rows, at least those that occur in pairs. */
export function countOf(segments: readonly Segment[], last: number): number {
  const known = segments.reduce((sum, segment) => sum + (segment.size ?? 0), 0);
  return Math.max(known, last + 1);
}

/** `data rows 0, 2, 5`; several pins: `a_values row 0, b_values rows 1, 2`. */
export function rowsText(segments: readonly Segment[], rows: readonly number[], most = 30): string {
  const byPin = new Map<string, number[]>();
  for (const row of rows.slice(0, most)) {
    const found = placeOf(segments, row);
    const name = found ? found.segment.label : segments.map((segment) => segment.label).join(", ");
    byPin.set(name, [...(byPin.get(name) ?? []), found ? found.row : row]);
  }
  const parts = [...byPin].map(([name, some]) => `${name} ${some.length === 1 ? "row" : "rows"} ${some.join(", ")}`);
  const rest = rows.length - most;
  return parts.join(", ") + (rest > 0 ? ` and ${rest} more` : "");
}

/** Rows by pin, for marking them elsewhere on the page. */
export function byPin(segments: readonly Segment[], rows: readonly number[]): Record<string, number[]> {
  const found: Record<string, number[]> = {};
  for (const row of rows) {
    const place = placeOf(segments, row);
    if (place) (found[place.segment.label] ??= []).push(place.row);
  }
  return found;
}
