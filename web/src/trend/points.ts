// Series as a chart needs them: one list of runs, and a list of values for each series.

import { isNumber, withinScale } from "./scale";

export type Points = readonly (readonly [number, number | null])[];

export interface Line {
  label: string;
  points: Points;
}

/** All runs of all series, ascending, and each series' values; null where it has none. */
export function columnsOf(lines: readonly Line[], log: boolean): [number[], ...(number | null)[][]] {
  const runs = [...new Set(lines.flatMap((line) => line.points.map(([run]) => run)))].sort((a, b) => a - b);
  const place = new Map(runs.map((run, k) => [run, k]));
  const values = lines.map((line) => {
    const row: (number | null)[] = new Array<number | null>(runs.length).fill(null);
    // A logarithmic scale cannot show 0 and below, and a linear one needs finite differences.
    for (const [run, value] of line.points) row[place.get(run)!] = !isNumber(value) || (log && value <= 0) ? null : log ? value : withinScale(value);
    return row;
  });
  return [runs, ...values];
}

/** The first run of a span that ends at `run`; 0 for all runs. */
export function since(run: number, span: number | null): number {
  return span === null ? 0 : Math.max(0, run - span);
}

export function lastOf(points: Points): readonly [number, number | null] | null {
  return points.at(-1) ?? null;
}

/** A number short enough for a legend; the result's table has the exact one. */
export function shortNumber(value: number | null | undefined): string {
  if (value === null || value === undefined) return "no number";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-4 ? value.toExponential(4) : String(Number(value.toPrecision(6)));
}

/** `0, 2` → [0, 2]; null if it is not a list of integers. */
export function readIndices(text: string): number[] | null {
  const trimmed = text.trim();
  if (!trimmed) return [];
  const parts = trimmed.split(/[\s,]+/).map(Number);
  return parts.every((part) => Number.isInteger(part) && part >= 0) ? parts : null;
}
