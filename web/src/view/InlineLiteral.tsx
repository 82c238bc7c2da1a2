// What is typed into an unwired pin, on the block itself. The server reads it: numbers never pass through JavaScript's.

import { useState } from "react";
import { valueText, whole } from "../model/show";
import { setValue } from "../state/editing";
import { useFeature } from "../state/features";
import { sayError } from "../state/messages";
import { server, set } from "../state/store";
import type { Block, Pin, Typed } from "../transport/protocol";

/** Whether anything can be typed here at all: operations and feeds come by wire only. */
export function takesLiteral(pin: Pin): boolean {
  return !pin.ref && !["operation", "feed", "sparse"].includes(pin.type) && !(pin.many && pin.type === "any");
}

/** The dtype of what is typed now, or the only one the pin takes. */
export function dtypeOf(block: Block, pin: Pin): string {
  const value = block.values?.[pin.name];
  if (value && typeof value === "object" && !Array.isArray(value) && typeof value["dtype"] === "string") return value["dtype"];
  return pin.dtypes.length === 1 && pin.type !== "any" ? pin.dtypes[0]! : "";
}

/** Read a literal and put it into the page; says what is wrong and gives false where it is none. */
export async function typeInto(block: string, pin: string, text: string, dtype: string): Promise<boolean> {
  if (!text.trim()) {
    setValue(block, pin, undefined);
    return true;
  }
  try {
    const typed = await server().ask<Typed>("parse", { text, dtype });
    setValue(block, pin, typed.value);
    return true;
  } catch (error) {
    sayError(error, { block, pin });
    return false;
  }
}

export function InlineLiteral({ block, pin }: { block: Block; pin: Pin }) {
  const [text, setText] = useState<string | null>(null);
  const on = useFeature("literals");
  const value = block.values?.[pin.name];
  if (!on || !takesLiteral(pin)) return <span className="pin-info missing">{pin.optional ? "" : "–"}</span>;
  if (text === null) {
    const full = value === undefined ? "" : whole(value);
    const begin = () => (full === null || full.length > 400 ? set({ dialog: { kind: "value", block: block.id, pin: pin.name } }) : setText(full));
    const fallback = pin.optional ? "" : "…";
    return (
      <button className={`literal nodrag${value === undefined ? " empty" : ""}`} onClick={begin} aria-label={`Type a value into ${block.id}.${pin.name}`} title={valueText(value, 400) || "click to type a value"}>
        {value === undefined ? fallback : valueText(value, 14)}
      </button>
    );
  }
  const finish = async () => {
    if (await typeInto(block.id, pin.name, text, dtypeOf(block, pin))) setText(null);
  };
  return (
    <input
      className="literal nodrag nopan"
      autoFocus
      value={text}
      aria-label={`Value of ${block.id}.${pin.name}`}
      onChange={(event) => setText(event.target.value)}
      onBlur={() => void finish()}
      onKeyDown={(event) => {
        event.stopPropagation();
        if (event.key === "Enter") void finish();
        if (event.key === "Escape") setText(null);
      }}
    />
  );
}
