// A sparse matrix that is typed into a block's pins, as one grid: empty cells are not entries. Applying it is one history step.

import { useCallback, useEffect, useMemo, useState } from "react";
import { server, useDoc, useStudio } from "../app/store";
import { change } from "../page/actions";
import * as edit from "../page/edit";
import { blockOf, endsAt } from "../page/page";
import type { Info, Json } from "../transport/protocol";
import { messageOf } from "../transport/protocol";
import { CloseDialog, DialogFrame, closeDialog } from "../ui/DialogFrame";
import { Tabs } from "../ui/Tabs";
import { ApplyButtons, applyOnCtrlEnter } from "./ApplyButtons";
import { GridTable, useUndo } from "./GridTable";
import { GoTo } from "./LargeGrid";
import { dtypesOf } from "./literals";
import type { Window } from "./requests";
import { widthOf } from "./requests";
import type { Entries, Entry, Part } from "./sparse";
import { PARTS, clearEntries, entriesOf, faultyEntry, listOf, partsOf, placeKey, putEntries } from "./sparse";
import { PER_PAGE, SparseList } from "./SparseList";
import type { Cursor } from "./spreadsheet";
import { START, cursorAt } from "./spreadsheet";
import { useCellPages } from "./useCellPages";

const MOST_ENTRIES = 10_000; // what the server lists at once
const LARGE = 50; // rows or columns beyond which the list is shown first
const USUAL = "float32";
const MOST_SIZE = 2 ** 40;

interface Listed {
  info: Info;
  total: number;
  of: [number, number];
  entries: Entry[];
}

export function SparseDialog({ block }: { block: string }) {
  const open = useDoc();
  const catalog = useStudio((state) => state.catalog);
  const all = useStudio((state) => state.hello?.dtypes ?? []);
  const found = open ? blockOf(open.page, block) : undefined;
  const pins = partsOf(catalog.find(found?.op ?? ""));
  const [stored] = useState(() => {
    const values = PARTS.map((part) => [part, found?.values?.[part]] as const);
    return values.every(([, value]) => value !== undefined) ? (Object.fromEntries(values) as Record<Part, Json>) : null;
  });
  const [ready, setReady] = useState(stored === null);
  const [listed, setListed] = useState<Listed | null>(null);
  const [entries, setEntries] = useState<Entries>(new Map());
  const [size, setSize] = useState<[number, number]>([4, 4]);
  const [dtype, setDtype] = useState(pins?.values.dtypes.includes(USUAL) ? USUAL : (pins?.values.dtypes[0] ?? USUAL));
  const [asList, setAsList] = useState(false);
  const [cursor, setCursor] = useState<Cursor>(START);
  const [page, setPage] = useState(0);
  const [fault, setFault] = useState<string | null>(null);
  const [touched, setTouched] = useState(stored === null);
  const [busy, setBusy] = useState(false);
  const past = useUndo<{ entries: Entries; size: [number, number] }>();

  useEffect(() => {
    if (!stored) return;
    server()
      .request<Listed>("sparse_list", { ...stored, entries: [0, MOST_ENTRIES] })
      .then((reply) => {
        setListed(reply);
        setEntries(entriesOf(reply.entries));
        setSize(reply.of);
        setDtype(reply.info.dtype ?? USUAL);
        setAsList(Math.max(...reply.of) > LARGE);
      })
      .catch((error: unknown) => setFault(`What is typed is no sparse matrix: ${messageOf(error)}. What you type here takes its place.`))
      .finally(() => setReady(true));
  }, [stored]);

  const [rows, columns] = size;
  const list = useMemo(() => listOf(entries, rows, columns), [entries, rows, columns]);
  if (!FEATURES.sparseEditor || !found) return <CloseDialog />;
  if (!pins) {
    return (
      <DialogFrame title={`Sparse matrix ${block}`}>
        <p>This block has no pins for indices, values and shape, so there is nothing to edit here.</p>
      </DialogFrame>
    );
  }
  const isLarge = listed !== null && listed.total > MOST_ENTRIES;
  const typed = PARTS.filter((part) => found.values?.[part] !== undefined);
  const wired = PARTS.filter((part) => endsAt(found, part).length);
  const outside = entries.size - list.length;
  const wrong = fault ? faultyEntry(fault) : null;
  const label = `Cells of ${block}`;
  const take = (next: Entries) => {
    past.push({ entries, size });
    setEntries(next);
    setTouched(true);
    setFault(null);
  };
  const put = (row: number, column: number, texts: string[][]) => {
    // A table pasted over the edge enlarges the matrix.
    setSize([Math.max(rows, row + texts.length), Math.max(columns, column + (texts[0]?.length ?? 0))]);
    take(putEntries(entries, row, column, texts));
  };
  const resize = (axis: 0 | 1, text: string) => {
    if (!/^\d+$/.test(text.trim())) return;
    const next: [number, number] = [...size];
    next[axis] = Math.min(Number(text), MOST_SIZE);
    setSize(next);
    setCursor(cursorAt(cursor.row, cursor.column, next[0], next[1]));
    setTouched(true);
  };
  const apply = async () => {
    if (!touched || isLarge) return closeDialog();
    setBusy(true);
    try {
      const made = await server().request<Record<Part, Json>>("sparse_cells", { dtype, shape: size, entries: list });
      change(`type sparse ${block}`, (was) => PARTS.reduce((next, part) => edit.setValue(next, block, part, made[part]), was));
      closeDialog();
    } catch (error) {
      const message = messageOf(error);
      const place = faultyEntry(message);
      setFault(message);
      if (place) setCursor(cursorAt(...place, rows, columns));
      if (place) setPage(Math.floor(list.findIndex(([r, c]) => r === place[0] && c === place[1]) / PER_PAGE));
      setBusy(false);
    }
  };
  return (
    <DialogFrame title={`Sparse matrix ${block}`} wide>
      <div className="value-editor" onKeyDown={applyOnCtrlEnter}>
        <div className="value-top">
          <Tabs label="How to edit" tabs={[["grid", "Grid"], ["list", "List"]]} now={asList ? "list" : "grid"} choose={(tab) => setAsList(tab === "list")} />
          <SizeField label="Rows" size={rows} disabled={isLarge} set={(text) => resize(0, text)} />
          <SizeField label="Columns" size={columns} disabled={isLarge} set={(text) => resize(1, text)} />
          <label className="value-dtype">
            Dtype
            <select value={dtype} aria-label="Dtype" disabled={isLarge} onChange={(event) => { setDtype(event.target.value); setTouched(true); }}>
              {[...new Set([...dtypesOf(pins.values, all), dtype])].map((name) => <option key={name}>{name}</option>)}
            </select>
          </label>
          <span className="value-info" role="status" aria-label="Entries in all">{isLarge ? listed.total : list.length} entries</span>
        </div>
        {wired.length > 0 && <p className="value-warning">{wired.join(", ")} {wired.length === 1 ? "comes" : "come"} by wire. Applying puts this matrix in the place of {wired.length === 1 ? "that wire" : "those wires"}.</p>}
        {stored === null && typed.length > 0 && <p className="value-warning">Only {typed.join(" and ")} {typed.length === 1 ? "is" : "are"} typed in, so this begins as an empty matrix.</p>}
        {outside > 0 && <p className="value-warning">{outside} {outside === 1 ? "entry lies" : "entries lie"} outside of the matrix and will be left out.</p>}
        {!ready && <p role="status">Reading …</p>}
        {ready && isLarge && <LargeSparse label={label} stored={stored!} rows={rows} columns={columns} total={listed.total} dtype={dtype} asList={asList} />}
        {ready && !isLarge && !asList && (
          <GridTable
            label={label}
            rows={rows}
            columns={columns}
            text={(r, c) => entries.get(placeKey(r, c)) ?? null}
            cursor={cursor}
            setCursor={setCursor}
            width={widthOf(dtype)}
            faulty={wrong}
            edit={{ put, clear: (range) => take(clearEntries(entries, range)), undo: () => past.undo((was) => { setEntries(was.entries); setSize(was.size); }) }}
          />
        )}
        {ready && !isLarge && asList && (
          <SparseList list={list.slice(page * PER_PAGE, (page + 1) * PER_PAGE)} page={page} total={list.length} turn={setPage} rows={rows} columns={columns} faulty={wrong} put={(row, column, text) => take(text ? new Map(entries).set(placeKey(row, column), text) : putEntries(entries, row, column, [[""]]))} />
        )}
        {fault && <p className="fault value-fault" role="alert">{fault}</p>}
        <ApplyButtons apply={apply} disabled={busy || !ready} />
      </div>
    </DialogFrame>
  );
}

function SizeField({ label, size, disabled, set }: { label: string; size: number; disabled: boolean; set: (text: string) => void }) {
  const [text, setText] = useState<string | null>(null); // while it is typed
  const finish = () => {
    if (text !== null) set(text);
    setText(null);
  };
  return (
    <label className="value-size">
      {label}
      <input inputMode="numeric" aria-label={label} value={text ?? String(size)} disabled={disabled} aria-invalid={text !== null && !/^\d+$/.test(text.trim())} onChange={(event) => setText(event.target.value)} onBlur={finish} onKeyDown={(event) => event.key === "Enter" && !event.ctrlKey && finish()} />
    </label>
  );
}

interface LargeProps {
  label: string;
  stored: Record<Part, Json>;
  rows: number;
  columns: number;
  total: number;
  dtype: string;
  asList: boolean;
}

function LargeSparse({ label, stored, rows, columns, total, dtype, asList }: LargeProps) {
  const [cursor, setCursor] = useState<Cursor>(START);
  const [page, setPage] = useState(0);
  const [list, setList] = useState<Entry[]>([]);
  const [fault, setFault] = useState<string | null>(null);
  const fetchCells = useCallback((seenRows: [number, number], seenColumns: [number, number]) => server().request<Window>("sparse", { ...stored, rows: seenRows, columns: seenColumns }), [stored]);
  const pages = useCellPages(fetchCells);
  useEffect(() => {
    let current = true;
    server()
      .request<{ entries: Entry[] }>("sparse_list", { ...stored, entries: [page * PER_PAGE, (page + 1) * PER_PAGE] })
      .then((reply) => current && setList(reply.entries))
      .catch((error: unknown) => current && setFault(messageOf(error)));
    return () => void (current = false);
  }, [stored, page]);
  const wrong = fault ?? pages.fault;
  return (
    <>
      <p>{total} entries are too many to be edited here, so they are only shown.</p>
      {wrong && <p className="fault" role="alert">{wrong}</p>}
      {asList ? (
        <SparseList list={list} page={page} total={total} turn={setPage} rows={rows} columns={columns} faulty={null} />
      ) : (
        <>
          <div className="value-tools"><GoTo rows={rows} columns={columns} go={(row, column) => setCursor(cursorAt(row, column, rows, columns))} /></div>
          <GridTable label={label} rows={rows} columns={columns} text={pages.text} see={pages.see} reject={(message) => setFault(message || null)} cursor={cursor} setCursor={setCursor} width={widthOf(dtype)} />
        </>
      )}
    </>
  );
}
