// A search field with a list: typed words filter it, arrow keys select, Enter chooses. Menus are made of it.

import { useEffect, useId, useRef, useState } from "react";
import { OpName } from "./MiddleText";

export interface Entry {
  key: string;
  title: string;
  note?: string | undefined;
  family?: string | undefined; // of an op, for its colour
  disabledReason?: string | undefined; // why it cannot be chosen
}

interface Props {
  label: string;
  entries: (typed: string) => Entry[];
  take: (key: string) => void;
  empty?: string;
}

export function SearchList({ label, entries, take, empty = "Nothing fits." }: Props) {
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const list = useRef<HTMLUListElement>(null);
  const id = useId();
  const shown = entries(typed);
  const at = Math.min(chosen, shown.length - 1);
  useEffect(() => {
    list.current?.children[at]?.scrollIntoView({ block: "nearest" });
  }, [at]);
  const choose = (entry: Entry | undefined) => {
    if (entry && entry.disabledReason === undefined) take(entry.key);
  };
  return (
    <div className="listing">
      <input
        autoFocus
        type="search"
        role="combobox"
        aria-label={label}
        aria-expanded="true"
        aria-controls={id}
        aria-activedescendant={shown[at] ? `${id}-${at}` : undefined}
        placeholder={label}
        value={typed}
        onChange={(event) => {
          setTyped(event.target.value);
          setChosen(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setChosen(Math.min(at + 1, shown.length - 1));
          else if (event.key === "ArrowUp") setChosen(Math.max(at - 1, 0));
          else if (event.key === "PageDown") setChosen(Math.min(at + 10, shown.length - 1));
          else if (event.key === "PageUp") setChosen(Math.max(at - 10, 0));
          else if (event.key === "Enter") choose(shown[at]);
          else return;
          event.preventDefault();
        }}
      />
      <ul role="listbox" aria-label={label} id={id} ref={list}>
        {shown.map((entry, k) => (
          <li
            key={entry.key}
            id={`${id}-${k}`}
            role="option"
            aria-selected={k === at}
            aria-disabled={entry.disabledReason !== undefined}
            className={`${k === at ? "chosen" : ""}${entry.disabledReason === undefined ? "" : " refused"}`}
            data-key={entry.key}
            data-family={entry.family}
            onClick={() => choose(entry)}
            onMouseMove={() => setChosen(k)}
          >
            <span>{entry.family ? <OpName op={entry.title} /> : entry.title}</span>
            {(entry.disabledReason ?? entry.note) && <span className="note-of">{entry.disabledReason ?? entry.note}</span>}
          </li>
        ))}
      </ul>
      {!shown.length && <p className="quiet">{empty}</p>}
    </div>
  );
}
