// The entries of a sparse matrix by row and column.

import type { OpRecord, Pin } from "../transport/protocol";
import type { Range } from "./spreadsheet";

export type Entries = ReadonlyMap<string, string>;
export type Entry = [number, number, string];

/** The parts of a sparse matrix, by their names in the server's verbs and in records. */
export const PARTS = ["indices", "values", "dense_shape"] as const;
export type Part = (typeof PARTS)[number];

/** The pins for the parts, if a record has all of them and outputs a sparse matrix. */
export function partsOf(record: OpRecord | undefined): Record<Part, Pin> | null {
  if (!record?.outputs.some((pin) => pin.type === "sparse")) return null;
  const found = PARTS.map((part) => record.inputs.find((pin) => pin.name === part));
  return found.every((pin) => pin !== undefined) ? (Object.fromEntries(PARTS.map((part, k) => [part, found[k]!])) as Record<Part, Pin>) : null;
}

export function placeKey(row: number, column: number): string {
  return `${row},${column}`;
}

export function entriesOf(list: readonly Entry[]): Entries {
  return new Map(list.map(([row, column, text]) => [placeKey(row, column), text]));
}

/** In row-major order, without entries outside the matrix. */
export function listOf(entries: Entries, rows: number, columns: number): Entry[] {
  const list: Entry[] = [];
  for (const [key, text] of entries) {
    const [row, column] = key.split(",").map(Number) as [number, number];
    if (row < rows && column < columns) list.push([row, column, text]);
  }
  return list.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
}

/** Put texts at a position; an empty one removes the entry. */
export function putEntries(entries: Entries, row: number, column: number, block: readonly (readonly string[])[]): Entries {
  const next = new Map(entries);
  block.forEach((line, r) =>
    line.forEach((text, c) => {
      const key = placeKey(row + r, column + c);
      if (text.trim() === "") next.delete(key);
      else next.set(key, text);
    }),
  );
  return next;
}

export function clearEntries(entries: Entries, range: Range): Entries {
  return new Map(
    [...entries].filter(([key]) => {
      const [row, column] = key.split(",").map(Number) as [number, number];
      return row < range.top || row > range.bottom || column < range.left || column > range.right;
    }),
  );
}

/** The row and column that a server message is about, or null. */
export function faultyEntry(message: string): [number, number] | null {
  const found = /at row (\d+), column (\d+)/.exec(message);
  return found ? [Number(found[1]), Number(found[2])] : null;
}
