// A value that is too large to edit, read only: visible cells are requested from the server.

import { useCallback, useState } from "react";
import { server } from "../app/store";
import type { Info, Json } from "../transport/protocol";
import { LeadingIndices } from "../ui/LeadingIndices";
import { clampIndices, matrixOf } from "./grid";
import { GridTable } from "./GridTable";
import type { Window } from "./requests";
import { widthOf } from "./requests";
import type { Cursor } from "./spreadsheet";
import { START, cursorAt } from "./spreadsheet";
import { useCellPages } from "./useCellPages";

export function LargeGrid({ label, value, info }: { label: string; value: Json; info: Info }) {
  const shape = info.shape as number[];
  const [at, setAt] = useState<number[]>(clampIndices(shape, []));
  const [cursor, setCursor] = useState<Cursor>(START);
  const [failure, setFailure] = useState("");
  const fetchCells = useCallback(
    (rows: [number, number], columns: [number, number]) => server().request<Window>("window", { value, at, rows, columns }),
    [value, at],
  );
  const { text, see, fault } = useCellPages(fetchCells);
  const { rows, columns } = matrixOf(shape, at);
  return (
    <>
      <div className="value-tools">
        <span>{info.text}: too large to be edited here, so it is only shown. Paste or import to replace it.</span>
        <GoTo rows={rows} columns={columns} go={(row, column) => setCursor(cursorAt(row, column, rows, columns))} />
        <LeadingIndices shape={shape} at={at} change={setAt} />
      </div>
      {(fault || failure) && <p className="fault" role="alert">{fault || failure}</p>}
      <GridTable label={label} rows={rows} columns={columns} text={text} see={see} reject={setFailure} cursor={cursor} setCursor={setCursor} width={widthOf(info.dtype)} />
    </>
  );
}

/** Go to a row and column by number: a scroll bar over a million rows is too coarse. */
export function GoTo({ rows, columns, go }: { rows: number; columns: number; go: (row: number, column: number) => void }) {
  const [text, setText] = useState("");
  const found = /^\s*(\d{1,15})(?:\s*[,\s]\s*(\d{1,15}))?\s*$/.exec(text);
  return (
    <label className="value-goto">
      Go to
      <input
        value={text}
        placeholder={columns > 1 ? "row, column" : "row"}
        aria-label="Go to row, column"
        title={`up to ${rows - 1}${columns > 1 ? `, ${columns - 1}` : ""}`}
        aria-invalid={text !== "" && !found}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => event.key === "Enter" && found && go(Number(found[1]), Number(found[2] ?? 0))}
      />
    </label>
  );
}
