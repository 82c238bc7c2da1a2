// Requests of the value editors to the server.

import { server } from "../app/store";
import type { Info, Json, Typed } from "../transport/protocol";
import { literalText } from "./format";
import type { Grid } from "./grid";
import { MOST_EDITED } from "./grid";

const MOST_TEXT = 2000; // characters of a literal that can be edited as text

interface Description {
  text: string;
  info: Info;
  weak: boolean;
  cells: string[] | null;
}

export interface Window {
  info: Info;
  rows: [number, number];
  columns: [number, number];
  of: [number, number];
  cells: (string | null)[][];
}

export interface UploadedArray {
  name: string;
  value: Json;
  info: Info;
}

/** A value being edited: the value itself, and its text or cells. */
export interface Draft {
  value: Json | undefined;
  info: Info | null;
  text: string | null; // null: too long to edit as text
  start: string; // the start of such a text
  grid: Grid | null; // null: too many cells to edit
  dtype: string; // "" if the value has none
}

const NOTHING: Draft = { value: undefined, info: null, text: "", start: "", grid: { shape: [], cells: [""] }, dtype: "" };

export async function draftOf(value: Json | undefined): Promise<Draft> {
  if (value === undefined) return NOTHING;
  const reply = await server().request<Description>("describe", { value, most: MOST_EDITED, characters: MOST_TEXT });
  const dtype = reply.weak ? "" : (reply.info.dtype ?? "");
  // The server suffixes float32 numbers with f; the dtype field says so already.
  const local = dtype === "float32" ? literalText(value) : null;
  const text = local !== null && local.length <= MOST_TEXT ? local : reply.text.endsWith("…") ? null : reply.text;
  const grid = reply.cells && { shape: reply.info.shape as number[], cells: reply.cells };
  // Unquoted strings need a dtype to be parsed as strings.
  const dtypeOfText = reply.weak && reply.info.dtype === "string" ? "string" : dtype;
  return { value, info: reply.info, text, start: `${reply.text.slice(0, 80)}…`, grid, dtype: dtypeOfText };
}

export async function readText(text: string, dtype: string): Promise<Json | undefined> {
  return text.trim() ? (await server().request<Typed>("parse", { text, dtype })).value : undefined;
}

export async function readGrid(grid: Grid, dtype: string): Promise<Json | undefined> {
  // One empty cell means no value.
  if (grid.shape.length === 0 && grid.cells[0] === "" && dtype !== "string") return undefined;
  return (await server().request<Typed>("cells", { dtype, shape: grid.shape, cells: grid.cells })).value;
}

export async function readFile(file: File, dtype: string): Promise<UploadedArray[]> {
  const args: Record<string, string> = dtype ? { name: file.name, dtype } : { name: file.name };
  return (await server().send<{ arrays: UploadedArray[] }>("upload", args, file)).arrays;
}

/** A column width for the usual longest text of a dtype. */
export function widthOf(dtype: string | null | undefined): number {
  if (dtype?.startsWith("complex")) return 170;
  if (dtype === "string" || dtype === "float64" || dtype?.endsWith("int64")) return 140;
  return 112;
}
