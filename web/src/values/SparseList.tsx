// A sparse matrix as a list of its entries, a page at a time.

import { X } from "lucide-react";
import { useState } from "react";
import type { Entry } from "./sparse";

export const PER_PAGE = 50;

interface Props {
  list: readonly Entry[]; // of this page
  page: number;
  total: number;
  turn: (page: number) => void;
  rows: number;
  columns: number;
  faulty: readonly [number, number] | null;
  put?: (row: number, column: number, text: string) => void;
}

export function SparseList({ list, page, total, turn, rows, columns, faulty, put }: Props) {
  const pages = Math.max(1, Math.ceil(total / PER_PAGE));
  return (
    <div className="sparse-list">
      <div className="sparse-scroll">
        <table aria-label="Entries">
          <thead>
            <tr><th scope="col">row</th><th scope="col">column</th><th scope="col">value</th><th /></tr>
          </thead>
          <tbody>
            {list.map(([row, column, text]) => (
              <tr key={`${row},${column}`} className={faulty?.[0] === row && faulty[1] === column ? "faulty" : ""}>
                <td>{row}</td>
                <td>{column}</td>
                <td>{put ? <input value={text} aria-label={`Value at ${row}, ${column}`} onChange={(event) => put(row, column, event.target.value || " ")} onBlur={() => !text.trim() && put(row, column, "")} /> : text}</td>
                <td>{put && <button className="plain" aria-label={`Remove the entry at ${row}, ${column}`} onClick={() => put(row, column, "")}><X size={13} aria-hidden="true" /></button>}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {total === 0 && <p className="quiet">There are no entries.</p>}
      </div>
      {put && <NewEntry rows={rows} columns={columns} put={put} />}
      <p className="sparse-pages">
        <button disabled={page <= 0} onClick={() => turn(page - 1)} aria-label="Page before">‹</button>
        <span role="status">page {page + 1} of {pages}, {total} {total === 1 ? "entry" : "entries"}</span>
        <button disabled={page >= pages - 1} onClick={() => turn(page + 1)} aria-label="Next page">›</button>
      </p>
    </div>
  );
}

function NewEntry({ rows, columns, put }: { rows: number; columns: number; put: (row: number, column: number, text: string) => void }) {
  const [row, setRow] = useState("");
  const [column, setColumn] = useState("");
  const [text, setText] = useState("");
  const place = [row, column].map((typed) => (/^\d+$/.test(typed.trim()) ? Number(typed) : -1)) as [number, number];
  const fits = place[0] >= 0 && place[0] < rows && place[1] >= 0 && place[1] < columns;
  const add = () => {
    if (!fits || !text.trim()) return;
    put(place[0], place[1], text);
    setText("");
  };
  const onKeyDown = (event: React.KeyboardEvent) => event.key === "Enter" && !event.ctrlKey && add();
  return (
    <div className="sparse-new" role="group" aria-label="New entry">
      <input value={row} placeholder="row" aria-label="Row of the new entry" aria-invalid={row !== "" && !(place[0] >= 0 && place[0] < rows)} onChange={(event) => setRow(event.target.value)} onKeyDown={onKeyDown} />
      <input value={column} placeholder="column" aria-label="Column of the new entry" aria-invalid={column !== "" && !(place[1] >= 0 && place[1] < columns)} onChange={(event) => setColumn(event.target.value)} onKeyDown={onKeyDown} />
      <input value={text} placeholder="value" aria-label="Value of the new entry" onChange={(event) => setText(event.target.value)} onKeyDown={onKeyDown} />
      <button onClick={add} disabled={!fits || !text.trim()}>Add</button>
    </div>
  );
}
