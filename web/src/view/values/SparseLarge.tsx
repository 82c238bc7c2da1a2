// A sparse matrix of too many entries to be edited here: looked at as a grid or as a list, as the server tells it.

import { useCallback, useEffect, useState } from "react";
import type { Cursor } from "../../model/sheet";
import { START, cursorAt } from "../../model/sheet";
import type { Entry, Part } from "../../model/sheet_sparse";
import { server } from "../../state/store";
import type { Json } from "../../transport/protocol";
import { GridTable } from "./GridTable";
import { GoTo } from "./PagedPart";
import { PER_PAGE, SparseList } from "./SparseList";
import type { Window } from "./asking";
import { faultOf, widthOf } from "./asking";
import { usePages } from "./usePages";

interface Props {
  label: string;
  given: Record<Part, Json>;
  rows: number;
  columns: number;
  total: number;
  dtype: string;
  asList: boolean;
}

export function SparseLarge({ label, given, rows, columns, total, dtype, asList }: Props) {
  const [cursor, setCursor] = useState<Cursor>(START);
  const [page, setPage] = useState(0);
  const [list, setList] = useState<Entry[]>([]);
  const [fault, setFault] = useState<string | null>(null);
  const ask = useCallback((seenRows: [number, number], seenColumns: [number, number]) => server().ask<Window>("sparse", { ...given, rows: seenRows, columns: seenColumns }), [given]);
  const pages = usePages(ask);
  useEffect(() => {
    let current = true;
    server()
      .ask<{ entries: Entry[] }>("sparse_list", { ...given, entries: [page * PER_PAGE, (page + 1) * PER_PAGE] })
      .then((reply) => current && setList(reply.entries))
      .catch((error: unknown) => current && setFault(faultOf(error).message));
    return () => void (current = false);
  }, [given, page]);
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
          <GridTable label={label} rows={rows} columns={columns} text={pages.text} see={pages.see} refuse={(message) => setFault(message || null)} cursor={cursor} setCursor={setCursor} width={widthOf(dtype)} />
        </>
      )}
    </>
  );
}
