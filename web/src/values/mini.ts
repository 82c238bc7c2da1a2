// Values drawn small, on blocks: what to draw for an array, and where its numbers come from.

import type { Info, Json } from "../transport/protocol";

/** The cells of a small matrix; a vector is one row. */
export interface MiniCells {
  cells: string[][];
  numbers: (number | null)[][]; // null where a cell is not a finite number
}

/** The number that a text shows; null if it shows none, or none that is finite. */
function finite(text: string): number | null {
  const number = text === "true" ? 1 : text === "false" ? 0 : Number(text);
  return text.trim() && Number.isFinite(number) ? number : null;
}

export const MOST_ROWS = 6; // of a table on a block
const MOST_COLUMNS = 8;
const MOST_LETTERS = 34; // of a row, so that it fits into a block

/** The matrix as cells if it is small enough for a table on a block, else null. */
export function smallCells(rows: string[][]): MiniCells | null {
  const columns = rows[0]?.length ?? 0;
  if (!rows.length || !columns || rows.length > MOST_ROWS || columns > MOST_COLUMNS || rows.some((row) => row.length !== columns)) return null;
  const numbers = rows.map((row) => row.map(finite));
  // Fewer digits rather than no table: else a block would change its size from run to run.
  const cells = isWide(rows) ? rows.map((row, i) => row.map((text, j) => shortNumberText(text, numbers[i]![j]!))) : rows;
  return isWide(cells) ? null : { cells, numbers };
}

function isWide(rows: readonly string[][]): boolean {
  const widths = rows[0]!.map((_, k) => Math.max(...rows.map((row) => row[k]!.length)));
  return widths.reduce((sum, width) => sum + width + 1, 0) > MOST_LETTERS;
}

/** A fraction in few digits; an integer keeps all of them. */
function shortNumberText(text: string, number: number | null): string {
  return number === null || !/[.e]/.test(text) ? text : shortNumber(number);
}

/** The cells of a result from its preview, which has all elements of a small one. */
export function cellsOfPreview(preview: string, info: Info): MiniCells | null {
  const shape = info.shape ?? [];
  if (shape.length > 2 || info.dtype === "string" || preview.includes("…")) return null;
  const rows = preview.split("; ").map((row) => row.split(", "));
  const [height, width] = shape.length === 2 ? shape : [1, shape.length ? shape[0] : 1];
  if (rows.length !== height || rows.some((row) => row.length !== width)) return null;
  return smallCells(rows);
}

/** The cells of a typed value whose elements are in the page. */
export function cellsOfValue(value: Json | undefined): MiniCells | null {
  const data = elementsOf(value);
  if (data === undefined || data === null || (Array.isArray(data) && !data.length)) return null;
  const rows = (!Array.isArray(data) ? [[data]] : Array.isArray(data[0]) ? data : [data]) as Json[];
  if (!rows.every((row) => Array.isArray(row) && row.every((one) => typeof one === "number" || typeof one === "boolean" || isNumberText(one)))) return null;
  return smallCells((rows as Json[][]).map((row) => row.map(String)));
}

/** The numbers of a typed matrix or vector of any size; null if they are on the server, or of a higher rank. */
export function numbersOfValue(value: Json | undefined): (number | null)[][] | null {
  const data = elementsOf(value);
  if (!Array.isArray(data) || !data.length) return null;
  const rows = (Array.isArray(data[0]) ? data : data.map((one) => [one])) as Json[];
  if (!rows.every((row) => Array.isArray(row) && row.every((one) => !Array.isArray(one)))) return null;
  return (rows as Json[][]).map((row) => row.map((one) => finite(String(one))));
}

function elementsOf(value: Json | undefined): Json | undefined {
  if (Array.isArray(value) || typeof value === "number" || typeof value === "boolean") return value;
  return typeof value === "object" && value !== null && "data" in value ? value["data"] : undefined;
}

function isNumberText(value: Json): boolean {
  return typeof value === "string" && finite(value) !== null;
}

const MOST_DRAWN = 48; // rows and columns of a picture

/** Few rows and columns, so that a picture has few pixels: of a matrix every n-th, and the least and the greatest number
 *  of each part of a vector, which a line goes through. */
export function thinned(numbers: (number | null)[][]): (number | null)[][] {
  const every = (n: number) => Math.max(1, Math.ceil(n / MOST_DRAWN));
  const [down, across] = [every(numbers.length), every(numbers[0]?.length ?? 0)];
  if (down === 1 || numbers[0]!.length > 1) return numbers.filter((_, i) => i % down === 0).map((row) => row.filter((_, j) => j % across === 0));
  const line = numbers.map((row) => row[0]!);
  const starts = Array.from({ length: Math.ceil(line.length / (2 * down)) }, (_, k) => 2 * down * k);
  return starts.flatMap((start) => extremes(line.slice(start, start + 2 * down)).map((one) => [one]));
}

/** The least and the greatest number, in their order. */
function extremes(part: (number | null)[]): (number | null)[] {
  const [low, high] = boundsOf([part]);
  if (part.includes(null)) return [null];
  return part.indexOf(low) < part.indexOf(high) ? [low, high] : [high, low];
}

export function boundsOf(numbers: readonly (readonly (number | null)[])[]): [number | null, number | null] {
  let [low, high]: [number | null, number | null] = [null, null];
  for (const one of numbers.flat()) {
    if (one === null) continue;
    low = low === null || one < low ? one : low;
    high = high === null || one > high ? one : high;
  }
  return [low, high];
}

/** How strongly to tint a number: 1 for the greatest positive, -1 for the greatest negative one. */
export function tints(numbers: readonly (readonly (number | null)[])[]): number[][] {
  const most = Math.max(0, ...numbers.flat().map((one) => Math.abs(one ?? 0)));
  return numbers.map((row) => row.map((one) => (most && one ? one / most : 0)));
}

/** A number in few letters. */
export function shortNumber(value: number): string {
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const text = value.toPrecision(3);
  return text.includes("e") ? Number(text).toExponential() : String(Number(text));
}

/** A long name without its middle, which says least. */
export function shortenMiddle(text: string, most: number): string {
  if (text.length <= most) return text;
  const tail = Math.floor((most - 1) * 0.45);
  return `${text.slice(0, most - 1 - tail)}…${text.slice(text.length - tail)}`;
}
