// The palette: blocks by category and by search, placed by dragging, by a click or by Enter.

import { ChevronRight, Search } from "lucide-react";
import { useEffect, useMemo, useRef, useState } from "react";
import { get, set, useStudio } from "../app/store";
import { OP_MIME_TYPE } from "../canvas/Canvas";
import { place } from "../page/actions";
import type { OpRecord } from "../transport/protocol";
import { MiddleText, OpName } from "../ui/MiddleText";
import { Splitter } from "../ui/Splitter";
import { search } from "./catalog";
import { familyOf, familyOfCategory } from "./families";

export function Palette() {
  const catalog = useStudio((state) => state.catalog);
  const active = useStudio((state) => state.active);
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set(catalog.categories.slice(0, 2).map((c) => c.name)));
  const found = useMemo(() => (typed.trim() ? search(catalog, typed) : null), [catalog, typed]);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => setTyped(""), [active]);
  useEffect(() => {
    const focus = () => {
      setTyped("");
      setChosen(0);
      field.current?.focus();
    };
    window.addEventListener("rowgrad:search-palette", focus);
    return () => window.removeEventListener("rowgrad:search-palette", focus);
  }, []);
  const put = (record: OpRecord | undefined) => {
    if (!record) return;
    place(record.name);
    if (get().narrow) set({ paletteOpen: false });
  };
  const toggle = (name: string) =>
    setOpened((before) => {
      const next = new Set(before);
      if (!next.delete(name)) next.add(name);
      return next;
    });
  return (
    <nav className="palette" aria-label="Palette">
      <Splitter panel="palette" label="Width of the palette" />
      {FEATURES.paletteSearch && (
        <div className="palette-search">
          <Search size={14} aria-hidden="true" />
          <input
            ref={field}
            id="palette-search"
            type="search"
            placeholder="Search blocks"
            aria-label="Search blocks"
            value={typed}
            onChange={(event) => {
              setTyped(event.target.value);
              setChosen(0);
            }}
            onKeyDown={(event) => {
              if (event.key === "Enter") put(found?.[chosen]);
              else if (event.key === "ArrowDown") setChosen((k) => Math.min(k + 1, (found?.length ?? 1) - 1));
              else if (event.key === "ArrowUp") setChosen((k) => Math.max(k - 1, 0));
              else if (event.key === "Escape") {
                setTyped("");
                return; // which also leaves the field
              } else if (event.key !== "/") return; // the key that leads here; no name has it
              event.preventDefault();
            }}
          />
          <kbd aria-hidden="true">/</kbd>
        </div>
      )}
      <div className="palette-list">
        {found ? (
          <>
            <p className="palette-count" role="status">{found.length} found</p>
            {found.map((record, k) => <Item key={record.name} record={record} chosen={k === chosen} whole put={put} />)}
          </>
        ) : (
          catalog.categories.map((category) => {
            const family = familyOfCategory(category.name);
            const Icon = family.icon;
            return (
              <section key={category.name} data-family={family.name}>
                <h2>
                  <button className="category" aria-expanded={opened.has(category.name)} onClick={() => toggle(category.name)}>
                    <span className="category-icon" aria-hidden="true"><Icon size={13} /></span> <span className="category-name">{category.name}</span> <span className="count">{category.records.length}</span>
                    <ChevronRight className="chevron" size={14} aria-hidden="true" />
                  </button>
                </h2>
                {opened.has(category.name) && category.records.map((record) => <Item key={record.name} record={record} put={put} />)}
              </section>
            );
          })
        )}
      </div>
    </nav>
  );
}

function Item({ record, chosen = false, whole = false, put }: { record: OpRecord; chosen?: boolean; whole?: boolean; put: (record: OpRecord) => void }) {
  const first = record.doc.split(/\n\n|(?<=\.)\s/)[0] ?? "";
  return (
    <button
      className={`palette-item${chosen ? " chosen" : ""}`}
      data-family={familyOf(record).name}
      draggable={FEATURES.paletteDrag}
      data-op={record.name}
      aria-label={record.name}
      title={FEATURES.help ? first : ""}
      onDragStart={(event) => {
        event.dataTransfer.setData(OP_MIME_TYPE, record.name);
        event.dataTransfer.effectAllowed = "copy";
      }}
      onClick={() => put(record)}
      onKeyDown={(event) => {
        if (event.key !== "F1" || !FEATURES.help) return;
        event.preventDefault();
        event.stopPropagation();
        set({ dialog: { kind: "help", op: record.name } });
      }}
    >
      {whole ? <span><OpName op={record.name} /></span> : <MiddleText text={record.name} />}
    </button>
  );
}
