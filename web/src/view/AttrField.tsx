// One attribute, edited as its default says what it is: a choice, a truth value, a number, a list, a text.

import { useState } from "react";
import { setAttr } from "../state/editing";
import { useStudio } from "../state/store";
import type { Block, Json } from "../transport/protocol";

interface Attr {
  default: Json;
  choices: Json[];
}

function plain(value: Json): string {
  if (value === null) return "";
  if (Array.isArray(value)) return `{${value.map(plain).join(",")}}`;
  if (typeof value === "object") return String(Object.values(value)[0]);
  return String(value);
}

function isFloat(value: Json): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value) && "float" in value;
}

/** What was typed, in the kind of the default; undefined where it is none. Whole numbers stay texts: none is rounded. */
function read(text: string, like: Json): Json | undefined {
  const clean = text.trim();
  if (like === null || Array.isArray(like)) {
    if (!clean) return null;
    const parts = clean.replace(/^[[{(]|[\]})]$/g, "").split(/[,\s]+/).filter(Boolean);
    return parts.every((part) => /^-?\d+$/.test(part)) ? parts.map(Number) : undefined;
  }
  if (isFloat(like)) return clean !== "" && Number.isFinite(Number(clean)) ? { float: Number(clean) } : undefined;
  if (typeof like === "number") return /^-?\d+$/.test(clean) ? (Number.isSafeInteger(Number(clean)) ? Number(clean) : { int: clean }) : undefined;
  return text;
}

export function AttrField({ block, name, attr }: { block: Block; name: string; attr: Attr }) {
  const value = block.attrs?.[name] ?? attr.default;
  const dtypes = useStudio((state) => state.hello?.dtypes ?? []);
  const put = (next: Json) => setAttr(block.id, name, JSON.stringify(next) === JSON.stringify(attr.default) ? undefined : next);
  const choices = attr.choices.length ? attr.choices : name === "dtype" ? ["", ...dtypes] : [];
  if (choices.length) {
    return (
      <label className="attr field">
        {name}
        <select value={plain(value)} onChange={(event) => put(choices.find((choice) => plain(choice) === event.target.value) ?? event.target.value)}>
          {choices.map((choice) => <option key={plain(choice)} value={plain(choice)}>{plain(choice) || "as the value says"}</option>)}
        </select>
      </label>
    );
  }
  if (typeof attr.default === "boolean") {
    return (
      <label className="attr check">
        <input type="checkbox" checked={value === true} onChange={(event) => put(event.target.checked)} /> {name}
      </label>
    );
  }
  return <TextAttr key={plain(value)} name={name} value={value} like={attr.default} put={put} />;
}

function TextAttr({ name, value, like, put }: { name: string; value: Json; like: Json; put: (value: Json) => void }) {
  const [text, setText] = useState(plain(value));
  const found = read(text, like);
  const finish = () => {
    if (found !== undefined && text !== plain(value)) put(found);
  };
  return (
    <label className="attr field">
      {name}
      <input value={text} aria-invalid={found === undefined} placeholder={like === null ? "{2,3}" : ""} onChange={(event) => setText(event.target.value)} onBlur={finish} onKeyDown={(event) => event.key === "Enter" && finish()} />
      {found === undefined && <span className="fault">{like === null || Array.isArray(like) ? "whole numbers, as {2,3}" : "a number"}</span>}
    </label>
  );
}
