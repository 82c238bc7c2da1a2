// A value typed into a pin, with its dtype; longer ones open as a table.

import { useState } from "react";
import { whole } from "../model/show";
import { setValue } from "../state/editing";
import { useFeature } from "../state/features";
import { set, useStudio } from "../state/store";
import type { Block, Pin } from "../transport/protocol";
import { dtypeOf, typeInto } from "./InlineLiteral";

const LONG = 2000; // characters beyond which a value is looked at as a table

export function LiteralField({ block, pin }: { block: Block; pin: Pin }) {
  const value = block.values?.[pin.name];
  const full = value === undefined ? "" : whole(value);
  const [text, setText] = useState(full ?? "");
  const [dtype, setDtype] = useState(dtypeOf(block, pin));
  const all = useStudio((state) => state.hello?.dtypes ?? []);
  const tables = useFeature("spreadsheet");
  const on = useFeature("literals");
  const dtypes = pin.type === "any" ? all : pin.dtypes;
  const long = full === null || full.length > LONG;
  const finish = (as: string) => {
    if (text !== (full ?? "") || as !== dtypeOf(block, pin)) void typeInto(block.id, pin.name, text, as);
  };
  if (!on) return null;
  return (
    <div className="literal-field">
      {long ? (
        <span className="pin-info">a large array</span>
      ) : (
        <input
          value={text}
          placeholder={pin.optional ? "nothing" : "type a value: 3 or {1,2}"}
          aria-label={`Value of ${block.id}.${pin.name}`}
          onChange={(event) => setText(event.target.value)}
          onBlur={() => finish(dtype)}
          onKeyDown={(event) => event.key === "Enter" && finish(dtype)}
        />
      )}
      <select
        value={dtype}
        aria-label={`Dtype of ${block.id}.${pin.name}`}
        disabled={long}
        onChange={(event) => {
          setDtype(event.target.value);
          if (text.trim()) finish(event.target.value);
        }}
      >
        <option value="">as typed</option>
        {dtypes.map((name) => <option key={name}>{name}</option>)}
      </select>
      {tables && <button className="plain" aria-label={`Edit ${block.id}.${pin.name} as a table`} title="Edit as a table, paste, or import a file" onClick={() => set({ dialog: { kind: "value", block: block.id, pin: pin.name } })}>▦</button>}
      {value !== undefined && <button className="plain" aria-label={`Clear ${block.id}.${pin.name}`} onClick={() => setValue(block.id, pin.name, undefined)}>✕</button>}
    </div>
  );
}
