// The value of an unwired pin, shown and edited on the block itself.

import { useMemo, useRef, useState } from "react";
import { set } from "../app/store";
import type { Block, Pin } from "../transport/protocol";
import { valueText } from "./format";
import { dtypeOf, takesLiteral, enterLiteral } from "./literals";
import { textOf } from "./typedText";
import { LINE, drawingOf } from "./MiniValue";

const LONG = 400; // characters beyond which a value is edited in the dialog

export function InlineLiteral({ block, pin }: { block: Block; pin: Pin }) {
  const [text, setText] = useState<string | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  const sent = useRef<string | null>(null); // the text last sent to the server: Enter followed by blur sends it once
  const fresh = useRef(false); // opened by the current click, which may become a double click
  // The field is as large as what it replaces, so that the second click of a double click hits it too.
  const size = useRef<{ minWidth: number; height: number } | undefined>(undefined);
  const value = block.values?.[pin.name];
  const drawing = useMemo(() => (value === undefined ? null : drawingOf(value)), [value]);
  if (!FEATURES.literals || !takesLiteral(pin)) return <span className="pin-info missing">{pin.optional ? "" : "–"}</span>;
  const full = value === undefined ? "" : textOf(block.id, pin.name, value);
  const close = () => {
    sent.current = null;
    setText(null);
    setFault(null);
  };
  const openTable = () => set({ dialog: { kind: "value", block: block.id, pin: pin.name } });
  if (text === null) {
    const begin = (event: React.MouseEvent<HTMLElement>) => {
      fresh.current = true;
      size.current = { minWidth: event.currentTarget.offsetWidth, height: event.currentTarget.offsetHeight };
      if (full === null || full.length > LONG) openTable();
      else setText(full);
    };
    const fallback = pin.optional ? "" : "…";
    const action = `type a value into ${block.id}.${pin.name}`;
    const shown = value === undefined ? "" : full !== null && full.length <= LINE ? full : valueText(value, LINE);
    // As in a spreadsheet: typing on the focused value replaces it.
    const replace = (event: React.KeyboardEvent) => {
      if (event.key.length !== 1 || event.key === " " || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      setText(event.key);
    };
    return (
      <button className={`literal nodrag${value === undefined ? " empty" : ""}`} onClick={begin} onKeyDown={replace} aria-label={drawing ? undefined : `${shown && `${shown}: `}${action}`} title={full ?? (valueText(value, 400) || "type a value")}>
        {drawing ? (
          <>
            <span aria-hidden="true">{drawing}</span>
            <span className="unseen">{shown}: {action}</span>
          </>
        ) : (
          shown || fallback
        )}
      </button>
    );
  }
  const finish = async () => {
    if (sent.current === text) return;
    sent.current = text;
    if (text === full) return close();
    const message = await enterLiteral(block, pin.name, text, dtypeOf(block, pin));
    if (message !== null) setFault(message);
    else setText((now) => (now === text ? null : now)); // stays open if more was typed meanwhile
  };
  return (
    <input
      className="literal nodrag nopan"
      autoFocus
      style={size.current}
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
        event.stopPropagation(); // in an open field a double click selects a word
        if (!fresh.current || !FEATURES.spreadsheet) return;
        close();
        openTable();
      }}
      onBlur={() => void finish()}
      onKeyDown={(event) => {
        if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
          sent.current = null;
          void finish();
        }
        if (event.key === "Escape") {
          sent.current = text; // the blur that follows sends nothing
          close();
        }
      }}
    />
  );
}
