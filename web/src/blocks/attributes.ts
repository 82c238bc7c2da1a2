// Attributes as text and back, of the kind of their default. No integer is converted to a JavaScript number and back.

import type { Json } from "../transport/protocol";

const SPECIAL: Record<string, string> = { nan: "NaN", inf: "Infinity", "+inf": "Infinity", "-inf": "-Infinity", infinity: "Infinity", "-infinity": "-Infinity" };

export function attrText(value: Json): string {
  if (value === null) return "";
  if (Array.isArray(value)) return `{${value.map(attrText).join(",")}}`;
  if (typeof value !== "object") return String(value);
  const inner = Object.values(value)[0]!;
  if ("float" in value && typeof inner === "number") return /^-?\d+$/.test(String(inner)) ? `${inner}.0` : String(inner);
  return String(inner);
}

function isFloat(value: Json): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value) && "float" in value;
}

function whole(text: string): Json {
  const number = Number(text);
  return Number.isSafeInteger(number) ? number : { int: text.replace(/^\+/, "") };
}

/** The typed text as a value of the default's kind; undefined if it does not parse. */
export function readAttr(text: string, like: Json): Json | undefined {
  const clean = text.trim();
  if (like === null || Array.isArray(like)) {
    if (!clean) return like;
    const parts = clean.replace(/^[[{(]|[\]})]$/g, "").split(/[,\s]+/).filter(Boolean);
    return parts.every((part) => /^[+-]?\d+$/.test(part)) ? parts.map(whole) : undefined;
  }
  if (isFloat(like)) {
    const special = SPECIAL[clean.toLowerCase()];
    if (special) return { float: special };
    if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(clean)) return undefined;
    const number = Number(clean);
    if (!Number.isFinite(number)) return undefined;
    return { float: Object.is(number, -0) ? "-0.0" : number };
  }
  if (typeof like === "number") return /^[+-]?\d+$/.test(clean) ? whole(clean) : undefined;
  return text;
}

export function kindText(like: Json): string {
  if (like === null || Array.isArray(like)) return "whole numbers, as {2,3}";
  return isFloat(like) ? "a number" : "a whole number";
}
