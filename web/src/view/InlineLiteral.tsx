// What is typed into an unwired pin, on the block itself. The server reads it: numbers never pass through JavaScript's.

import { useRef, useState } from "react";
import { valueText, whole } from "../model/show";
import { setValue } from "../state/editing";
import { say } from "../state/messages";
import { isRead } from "../state/saving";
import { get, server, set } from "../state/store";
import type { Block, Pin, Typed } from "../transport/protocol";
import { faultOf } from "./values/asking";

const LONG = 400; // characters beyond which a value is edited in the dialog

/** Whether anything can be typed here at all: operations and feeds come by wire only. */
export function takesLiteral(pin: Pin): boolean {
  return !pin.ref && !["operation", "feed", "sparse"].includes(pin.type) && !(pin.many && pin.type === "any");
}

/** The dtypes a value of this pin may have. */
export function dtypesOf(pin: Pin, all: string[]): string[] {
  return pin.type === "any" || !pin.dtypes.length ? all : pin.dtypes;
}

/** The dtype of what is typed now, or the only one the pin takes. */
export function dtypeOf(block: Block, pin: Pin): string {
  const value = block.values?.[pin.name];
  if (value && typeof value === "object" && !Array.isArray(value) && typeof value["dtype"] === "string") return value["dtype"];
  return pin.dtypes.length === 1 && pin.type !== "any" ? pin.dtypes[0]! : "";
}

/** Read a literal and put it into the page; the message where it is none. */
export async function typeInto(block: Block, pin: string, text: string, dtype: string): Promise<string | null> {
  const name = get().active;
  if (!text.trim()) {
    if (block.values?.[pin] !== undefined) setValue(block.id, pin, undefined);
    return null;
  }
  try {
    const asking = server().ask<Typed>("parse", { text, dtype }).then((typed) => {
      if (JSON.stringify(typed.value) !== JSON.stringify(block.values?.[pin])) setValue(block.id, pin, typed.value, name);
    });
    isRead(name, asking);
    await asking;
    return null;
  } catch (error) {
    const { message } = faultOf(error);
    say("error", message, { page: name, block: block.id, pin }); // which says the block and the pin
    return `${pin}: ${message}`;
  }
}

export function InlineLiteral({ block, pin }: { block: Block; pin: Pin }) {
  const [text, setText] = useState<string | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  const asked = useRef<string | null>(null); // the text the server has been asked about: Enter and leaving ask once
  const fresh = useRef(false); // opened by the click that is still going on: it may become a double click
  const value = block.values?.[pin.name];
  if (!FEATURES.literals || !takesLiteral(pin)) return <span className="pin-info missing">{pin.optional ? "" : "–"}</span>;
  const full = value === undefined ? "" : whole(value);
  const close = () => {
    asked.current = null;
    setText(null);
    setFault(null);
  };
  const openTable = () => set({ dialog: { kind: "value", block: block.id, pin: pin.name } });
  if (text === null) {
    const begin = () => {
      fresh.current = true;
      if (full === null || full.length > LONG) openTable();
      else setText(full);
    };
    const fallback = pin.optional ? "" : "…";
    return (
      <button className={`literal nodrag${value === undefined ? " empty" : ""}`} onClick={begin} aria-label={`${value === undefined ? "" : `${valueText(value, 14)}: `}type a value into ${block.id}.${pin.name}`} title={valueText(value, 400) || "click to type a value"}>
        {value === undefined ? fallback : valueText(value, 14)}
      </button>
    );
  }
  const finish = async () => {
    if (asked.current === text) return;
    asked.current = text;
    if (text === full) return close();
    const message = await typeInto(block, pin.name, text, dtypeOf(block, pin));
    if (message !== null) setFault(message);
    else setText((now) => (now === text ? null : now)); // typed on meanwhile: it stays open
  };
  return (
    <input
      className="literal nodrag nopan"
      autoFocus
      value={text}
      aria-label={`Value of ${block.id}.${pin.name}`}
      aria-invalid={fault !== null}
      title={fault ?? undefined}
      onChange={(event) => {
        setText(event.target.value);
        setFault(null);
      }}
      onMouseDown={(event) => {
        if (event.detail === 1) fresh.current = false;
      }}
      onDoubleClick={(event) => {
        event.stopPropagation(); // in a field that was open a double click chooses a word
        if (!fresh.current || !FEATURES.spreadsheet) return;
        close();
        openTable();
      }}
      onBlur={() => void finish()}
      onKeyDown={(event) => {
        if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
          asked.current = null;
          void finish();
        }
        if (event.key === "Escape") {
          asked.current = text; // leaving is no asking
          close();
        }
      }}
    />
  );
}
