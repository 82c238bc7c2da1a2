// A value field of the inspector, with its dtype; long values open as a table.

import { Table2, X } from "lucide-react";
import { useRef, useState } from "react";
import { set, useStudio } from "../app/store";
import { setValue } from "../page/actions";
import type { Block, Pin } from "../transport/protocol";
import { valueText } from "./format";
import { dtypeOf, dtypesOf, enterLiteral } from "./literals";
import { textOf } from "./typedText";

const LONG = 2000; // characters beyond which a value is shown as a table

export function LiteralField({ block, pin }: { block: Block; pin: Pin }) {
  const value = block.values?.[pin.name];
  const full = value === undefined ? "" : textOf(block.id, pin.name, value);
  const [text, setText] = useState(full ?? "");
  const [dtype, setDtype] = useState(dtypeOf(block, pin));
  const [fault, setFault] = useState<string | null>(null);
  const sent = useRef<string | null>(null);
  const current = JSON.stringify(value);
  const [shown, setShown] = useState(current);
  const [was, setWas] = useState(full ?? "");
  // Undo and other editors change the value behind the field; the field keeps its focus and the text
  // being typed.
  if (shown !== current) {
    setShown(current);
    setWas(full ?? "");
    if (text === was || sent.current === `${dtype} ${text}`) {
      setText(full ?? "");
      setDtype(dtypeOf(block, pin));
      setFault(null);
    }
  }
  const all = useStudio((state) => state.hello?.dtypes ?? []);
  const dtypes = dtypesOf(pin, all);
  const long = full === null || full.length > LONG;
  const label = `${block.id}.${pin.name}`;
  const finish = async (as: string) => {
    const question = `${as} ${text}`;
    if (sent.current === question || (text === (full ?? "") && as === dtypeOf(block, pin))) return;
    sent.current = question;
    setFault(await enterLiteral(block, pin.name, text, as));
  };
  const restore = () => {
    setText(full ?? "");
    setDtype(dtypeOf(block, pin));
    setFault(null);
    sent.current = null;
  };
  return (
    <>
      <div className="literal-field">
        {!FEATURES.literals ? null : long ? (
          <span className="literal-large" title="Too long for a line: open it as a table">{valueText(value, 30)}</span>
        ) : (
          <input
            value={text}
            placeholder={pin.optional ? "nothing" : "3 or [1, 2]"}
            aria-label={`Value of ${label}`}
            aria-invalid={fault !== null}
            onChange={(event) => {
              setText(event.target.value);
              setFault(null);
              sent.current = null;
            }}
            onBlur={() => void finish(dtype)}
            onKeyDown={(event) => {
              if (event.key === "Enter") {
                sent.current = null;
                void finish(dtype);
              }
              if (event.key === "Escape") restore();
            }}
          />
        )}
        {FEATURES.literals && <select
          value={dtype}
          aria-label={`Dtype of ${label}`}
          disabled={long}
          onChange={(event) => {
            setDtype(event.target.value);
            if (text.trim()) void finish(event.target.value);
          }}
        >
          <option value="">as typed</option>
          {[...new Set(dtype ? [...dtypes, dtype] : dtypes)].map((name) => <option key={name}>{name}</option>)}
        </select>}
        {(FEATURES.spreadsheet || FEATURES.upload) && <button className="plain" aria-label={`Edit ${label} as a table`} title="Edit as a table, paste, or import a file" onClick={() => set({ dialog: { kind: "value", block: block.id, pin: pin.name } })}><Table2 size={14} aria-hidden="true" /></button>}
        {value !== undefined && <button className="plain" aria-label={`Clear ${label}`} onClick={() => setValue(block.id, pin.name, undefined)}><X size={13} aria-hidden="true" /></button>}
      </div>
      {fault && <p className="fault" role="alert">{fault}</p>}
    </>
  );
}
