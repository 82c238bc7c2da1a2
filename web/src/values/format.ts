// Values, types, times and sizes as short text. Texts of elements come from the server; nothing here rounds them.

import type { Info, Json } from "../transport/protocol";

function isRecord(value: Json | undefined): value is { [key: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A typed value on one line: a literal if it is short, else dtype and shape. */
export function valueText(value: Json | undefined, most = 60): string {
  if (value === undefined) return "";
  const text = literalText(value);
  if (text !== null && text.length <= most) return text;
  if (isRecord(value) && "dtype" in value) return `${String(value["dtype"])}[${(value["shape"] as number[]).join(",")}]`;
  return text === null ? "" : `${text.slice(0, most - 1)}…`;
}

/** The full literal, or null if the elements are on the server only. */
export function literalText(value: Json): string | null {
  if (Array.isArray(value)) {
    const parts = value.map(literalText);
    return parts.includes(null) ? null : `[${parts.join(", ")}]`;
  }
  if (isRecord(value)) {
    if ("data" in value) return elements(value["data"]!, String(value["dtype"]));
    if ("float" in value) return floatText(value["float"]!);
    if ("int" in value) return String(value["int"]);
    if ("complex" in value) return complexText(value["complex"]!);
    return null;
  }
  return typeof value === "string" ? quoted(value) : String(value);
}

function elements(data: Json, dtype: string): string {
  if (Array.isArray(data) && !(dtype.startsWith("complex") && data.length === 2 && !Array.isArray(data[0]))) {
    return `[${data.map((part) => elements(part, dtype)).join(", ")}]`;
  }
  if (dtype.startsWith("complex")) return complexText(data);
  if (dtype === "string") return isRecord(data) ? `base64:${String(data["base64"])}` : quoted(String(data));
  return String(data);
}

/** A string as a literal. */
function quoted(text: string): string {
  const escaped = text.replace(/[\\"]/g, "\\$&").replace(/\n/g, "\\n").replace(/\t/g, "\\t");
  return `"${escaped}"`;
}

function complexText(value: Json): string {
  const [real, imaginary] = value as [Json, Json];
  const text = String(imaginary);
  return `${String(real)}${text.startsWith("-") ? "" : "+"}${text}j`;
}

function floatText(value: Json): string {
  const text = String(value);
  return /^-?\d+$/.test(text) ? `${text}.0` : text;
}

export function infoText(info: Info | Info[] | undefined): string {
  if (!info) return "";
  if (Array.isArray(info)) return info.length === 1 ? info[0]!.text : `${info.length} values`;
  return info.kind === "tensor" && info.shape?.length === 0 ? `one ${info.dtype}` : info.text;
}

/** Whether the whole shape is known. */
export function isKnown(info: Info | Info[] | undefined): boolean {
  if (!info) return false;
  if (Array.isArray(info)) return info.every(isKnown);
  return info.kind !== "tensor" || (info.shape !== null && !info.shape.includes(null));
}

/** Marked with `?` if only a run can determine the size. */
export function markedText(info: Info | Info[] | undefined): string {
  const text = infoText(info);
  return !text || isKnown(info) || text.includes("?") ? text : `${text} ?`;
}

export function secondsText(seconds: number): string {
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(seconds < 1e-5 ? 1 : 0)} µs`;
  return seconds < 1 ? `${(seconds * 1e3).toFixed(seconds < 1e-2 ? 2 : 1)} ms` : `${seconds.toFixed(2)} s`;
}

export function bytesText(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let size = bytes / 1024;
  let k = 0;
  while (size >= 1024 && k < units.length - 1) {
    size /= 1024;
    k++;
  }
  return `${size.toFixed(size < 10 ? 1 : 0)} ${units[k]}`;
}
