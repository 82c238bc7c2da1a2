// A field for one attribute, of the kind of its default: a choice, a boolean, a number, a list, a text.

import { useState } from "react";
import { useStudio } from "../app/store";
import { setAttr } from "../page/actions";
import type { Block, Json } from "../transport/protocol";
import { attrText, kindText, readAttr } from "./attributes";

interface Attr {
  default: Json;
  choices: Json[];
}

/** The field changes the attribute of `block`, and of the `others` with it. */
export function AttributeField({ block, name, attr, others = [] }: { block: Block; name: string; attr: Attr; others?: readonly Block[] }) {
  const value = block.attrs?.[name] ?? attr.default;
  const dtypes = useStudio((state) => state.hello?.dtypes ?? []);
  const all = [block, ...others];
  const isMixed = others.some((other) => JSON.stringify(other.attrs?.[name] ?? attr.default) !== JSON.stringify(value));
  const put = (next: Json) => {
    if (!isMixed && JSON.stringify(next) === JSON.stringify(value)) return;
    setAttr(all.map(({ id }) => id), name, JSON.stringify(next) === JSON.stringify(attr.default) ? undefined : next);
  };
  const label = others.length ? `${name} of ${all.length} blocks` : `${name} of ${block.id}`;
  const caption = <>{name}{isMixed && <em className="quiet"> (differs)</em>}</>;
  const choices = attr.choices.length ? attr.choices : name === "dtype" ? [...new Set([attr.default, ...dtypes])] : [];
  if (choices.length) {
    const known = choices.some((choice) => attrText(choice) === attrText(value));
    return (
      <label className="attr field">
        {caption}
        <select value={attrText(value)} aria-label={label} onChange={(event) => put(choices.find((choice) => attrText(choice) === event.target.value) ?? event.target.value)}>
          {[...(known ? [] : [value]), ...choices].map((choice) => <option key={attrText(choice)} value={attrText(choice)}>{attrText(choice) || "as the value says"}</option>)}
        </select>
      </label>
    );
  }
  if (typeof attr.default === "boolean") {
    return (
      <label className="attr check">
        <input type="checkbox" checked={value === true} aria-label={label} onChange={(event) => put(event.target.checked)} /> {caption}
      </label>
    );
  }
  return <TextAttr label={label} name={name} value={value} like={attr.default} put={put} />;
}

interface TextProps {
  label: string;
  name: string;
  value: Json;
  like: Json;
  put: (value: Json) => void;
}

function TextAttr({ label, name, value, like, put }: TextProps) {
  const now = attrText(value);
  const [shown, setShown] = useState(now);
  const [text, setText] = useState(now);
  // Undo changes the value behind the field; the field keeps its focus and the text being typed.
  if (shown !== now) {
    setShown(now);
    if (text === shown) setText(now);
  }
  const found = readAttr(text, like);
  const finish = () => {
    if (found === undefined || text === now) return;
    put(found);
    setText(attrText(found));
  };
  return (
    <label className="attr field">
      {name}
      <input
        value={text}
        aria-label={label}
        aria-invalid={found === undefined}
        placeholder={like === null ? "{2,3}" : ""}
        onChange={(event) => setText(event.target.value)}
        onBlur={finish}
        onKeyDown={(event) => {
          if (event.key === "Enter") finish();
          if (event.key === "Escape") setText(now);
        }}
      />
      {found === undefined && <span className="fault" role="alert">{name} is {kindText(like)}</span>}
    </label>
  );
}
