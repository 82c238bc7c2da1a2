// The texts that users typed for values: brackets or braces, spaces and all. A value is shown as it was typed as long as
// it is that value; others are shown in brackets.

import { get } from "../app/store";
import type { Json } from "../transport/protocol";
import { literalText } from "./format";

const MOST = 1000; // texts that are remembered
const KEY = "rowgrad-typed";
const LONGEST = 400;

type Typed = [value: string, text: string];

let texts: Map<string, Typed> | null = null;

/** Storage may be forbidden; then texts are forgotten with the window. */
function load(): Map<string, Typed> {
  if (texts) return texts;
  try {
    texts = new Map(JSON.parse(sessionStorage.getItem(KEY) ?? "[]") as [string, Typed][]);
  } catch {
    texts = new Map();
  }
  return texts;
}

function keyOf(block: string, pin: string, page: string | null): string {
  return JSON.stringify([get().hello?.project.folder ?? "", page, block, pin]);
}

export function rememberText(block: string, pin: string, value: Json, text: string, page = get().active): void {
  const clean = text.trim();
  if (clean.length > LONGEST) return;
  const known = load();
  const key = keyOf(block, pin, page);
  known.delete(key);
  known.set(key, [JSON.stringify(value), clean]);
  if (known.size > MOST) known.delete(known.keys().next().value!);
  try {
    sessionStorage.setItem(KEY, JSON.stringify([...known]));
  } catch {
    // Then the text is remembered until the window closes.
  }
}

/** The text of a value: as it was typed, or as a literal; null if the elements are on the server only. */
export function textOf(block: string, pin: string, value: Json, page = get().active): string | null {
  const typed = load().get(keyOf(block, pin, page));
  return typed && typed[0] === JSON.stringify(value) ? typed[1] : literalText(value);
}
