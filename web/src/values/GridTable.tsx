// A table with a spreadsheet's keys. Only visible cells are rendered, so it may have any size.

import { useEffect, useId, useRef, useState } from "react";
import type { Cursor, Range } from "./spreadsheet";
import { cursorAt, formatTable, isInside, moveCursor, nextCell, parseTable, rangeOf } from "./spreadsheet";
import { HEAD, ROW, useVisibleCells } from "./useVisibleCells";

const MOST_COPIED = 100_000; // cells

export interface GridEdits {
  put: (row: number, column: number, block: string[][]) => void;
  clear: (range: Range) => void;
  undo: () => void;
}

interface Props {
  label: string;
  rows: number;
  columns: number;
  text: (row: number, column: number) => string | null | undefined; // undefined: not loaded yet
  cursor: Cursor;
  setCursor: (cursor: Cursor) => void;
  width: number;
  tall?: number; // rows that are shown at most
  faulty?: readonly [number, number] | null;
  edit?: GridEdits;
  reject?: (message: string) => void; // why nothing was copied
  see?: (rows: [number, number], columns: [number, number]) => void;
}

export function GridTable({ label, rows, columns, text, cursor, setCursor, width, tall = 13, faulty = null, edit, reject, see }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const id = useId();
  const [typed, setTyped] = useState<{ text: string; inside: boolean } | null>(null); // the text being typed; inside: arrow keys move within it
  const refocus = useRef(false);
  const { row, column, side, fitRows, fitColumns, space, scroll, reveal } = useVisibleCells(box, rows, columns, width);
  const lastRow = Math.min(row + fitRows + 1, rows);
  const lastColumn = Math.min(column + fitColumns + 1, columns);
  const range = rangeOf(cursor);

  // A dialog that opens with a table focuses it, unless the focus is on the dialog's tabs.
  useEffect(() => {
    if (!document.activeElement?.closest("[role=tab]")) box.current?.focus({ preventScroll: true });
  }, []);
  useEffect(() => reveal(cursor.row, cursor.column), [cursor.row, cursor.column, reveal]);
  useEffect(() => see?.([row, lastRow], [column, lastColumn]), [see, row, lastRow, column, lastColumn]);
  useEffect(() => {
    if (typed === null && refocus.current) box.current?.focus({ preventScroll: true });
    refocus.current = false;
  }, [typed]);

  const commit = (next: Cursor | null) => {
    if (typed) edit?.put(cursor.row, cursor.column, [[typed.text]]);
    setTyped(null);
    if (next) {
      refocus.current = true;
      setCursor(next);
    }
  };
  const under = cursorAt(cursor.row + 1, cursor.column, rows, columns);
  const begin = (start: string, inside: boolean) => edit && rows > 0 && columns > 0 && setTyped({ text: start, inside });

  const keyInGrid = (event: React.KeyboardEvent) => {
    const { key, shiftKey, altKey } = event;
    const far = event.ctrlKey || event.metaKey;
    if (event.target !== box.current || altKey || rows === 0 || columns === 0) return;
    const next = moveCursor(cursor, key, far, shiftKey, rows, columns, fitRows);
    if (next) setCursor(next);
    else if (far && key.toLowerCase() === "a") setCursor({ row: rows - 1, column: columns - 1, fromRow: 0, fromColumn: 0 });
    else if (far && key.toLowerCase() === "z" && edit) edit.undo();
    else if (far) return;
    else if (key === "Tab" && edit) {
      const beside = nextCell(cursor, shiftKey, rows, columns);
      if (!beside) return; // out of the grid
      setCursor(beside);
    } else if (key === "Enter" && edit) setCursor(shiftKey ? cursorAt(cursor.row - 1, cursor.column, rows, columns) : under);
    else if (key === "F2") begin(text(cursor.row, cursor.column) ?? "", true);
    else if (key === "Delete" || key === "Backspace") edit?.clear(range);
    else if (key.length === 1 && edit) begin(key, false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const keyInCell = (event: React.KeyboardEvent) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return; // the dialog handles it
    event.stopPropagation();
    if (event.key === "Escape") {
      refocus.current = true;
      setTyped(null);
    } else if (event.key === "Enter") commit(event.shiftKey ? cursorAt(cursor.row - 1, cursor.column, rows, columns) : under);
    else if (event.key === "Tab") commit(nextCell(cursor, event.shiftKey, rows, columns) ?? cursor);
    else if (!typed?.inside && event.key.startsWith("Arrow")) commit(moveCursor(cursor, event.key, false, false, rows, columns, fitRows));
    else return;
    event.preventDefault();
  };

  /** The texts of the range; null if there are too many or some are not loaded: a partial copy would look complete. */
  const chosen = (): string[][] | null => {
    const count = (range.bottom - range.top + 1) * (range.right - range.left + 1);
    if (count > MOST_COPIED) {
      reject?.(`At most ${MOST_COPIED} cells are copied at once, and these are ${count}.`);
      return null;
    }
    const found: string[][] = [];
    for (let r = range.top; r <= range.bottom; r++) {
      const line: string[] = [];
      for (let c = range.left; c <= range.right; c++) {
        const cell = text(r, c);
        if (cell === undefined) {
          reject?.("Not all of these cells have been looked at, so nothing was copied. Scroll over them, or select fewer.");
          return null;
        }
        line.push(cell ?? "");
      }
      found.push(line);
    }
    return found;
  };
  const copy = (event: React.ClipboardEvent) => {
    const found = event.target === box.current ? chosen() : null;
    if (!found) return;
    reject?.("");
    event.clipboardData.setData("text/plain", formatTable(found));
    event.preventDefault();
    if (event.type === "cut") edit?.clear(range);
  };
  const paste = (event: React.ClipboardEvent) => {
    if (event.target !== box.current || !edit) return;
    const block = parseTable(event.clipboardData.getData("text/plain"));
    event.preventDefault();
    // One cell pasted over a range fills it, as spreadsheets do.
    const one = block.length === 1 && block[0]!.length === 1 ? block[0]![0]! : null;
    const filled = one === null ? block : new Array(range.bottom - range.top + 1).fill(new Array(range.right - range.left + 1).fill(one));
    edit.put(range.top, range.left, filled as string[][]);
    setCursor({ fromRow: range.top, fromColumn: range.left, row: range.top + filled.length - 1, column: range.left + (filled[0] as string[]).length - 1 });
  };

  const seenColumns = Array.from({ length: Math.max(0, lastColumn - column) }, (_, k) => column + k);
  const line = { gridTemplateColumns: `${side}px repeat(${seenColumns.length}, ${width}px)` };
  const height = HEAD + Math.min(Math.max(rows, 1), tall) * ROW + 18;
  return (
    <div
      ref={box}
      className={`sheet${edit ? "" : " fixed"}`}
      style={{ height }}
      role="grid"
      tabIndex={0}
      aria-label={label}
      aria-rowcount={rows}
      aria-colcount={columns}
      aria-readonly={!edit}
      aria-multiselectable="true"
      aria-activedescendant={rows && columns ? `${id}-${cursor.row}-${cursor.column}` : undefined}
      onScroll={scroll}
      onKeyDown={keyInGrid}
      onCopy={copy}
      onCut={copy}
      onPaste={paste}
    >
      <div className="sheet-space" style={space}>
        <div className="sheet-seen">
          <div className="sheet-row sheet-head" role="row" style={line}>
            <span className="sheet-side" role="columnheader" aria-label="row" />
            {seenColumns.map((c) => <span key={c} className={`sheet-side${c >= range.left && c <= range.right ? " near" : ""}`} role="columnheader">{c}</span>)}
          </div>
          {Array.from({ length: Math.max(0, lastRow - row) }, (_, k) => row + k).map((r) => (
            <div key={r} className="sheet-row" role="row" aria-rowindex={r + 1} style={line}>
              <span className={`sheet-side${r >= range.top && r <= range.bottom ? " near" : ""}`} role="rowheader">{r}</span>
              {seenColumns.map((c) => {
                const here = r === cursor.row && c === cursor.column;
                const found = text(r, c);
                const wrong = faulty !== null && faulty[0] === r && faulty[1] === c;
                return (
                  <span
                    key={c}
                    id={`${id}-${r}-${c}`}
                    className={`sheet-cell${isInside(range, r, c) ? " chosen" : ""}${here ? " here" : ""}${wrong ? " faulty" : ""}${found === null ? " nothing" : ""}`}
                    role="gridcell"
                    aria-colindex={c + 1}
                    aria-selected={isInside(range, r, c)}
                    aria-invalid={wrong || undefined}
                    data-cell={`${r},${c}`}
                    title={found ?? undefined}
                    onMouseDown={(event) => {
                      if (here && typed) return;
                      setCursor(cursorAt(r, c, rows, columns, event.shiftKey ? cursor : null));
                    }}
                    onMouseEnter={(event) => event.buttons === 1 && !typed && setCursor(cursorAt(r, c, rows, columns, cursor))}
                    onDoubleClick={() => begin(found ?? "", true)}
                  >
                    {here && typed ? (
                      <input
                        data-escape
                        autoFocus
                        value={typed.text}
                        aria-label={`Cell ${r}, ${c}`}
                        onChange={(event) => setTyped({ ...typed, text: event.target.value })}
                        onBlur={() => commit(null)}
                        onKeyDown={keyInCell}
                      />
                    ) : found === undefined ? "…" : found}
                  </span>
                );
              })}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}

const MOST_UNDO = 200;

export function useUndo<T>(): { push: (was: T) => void; undo: (show: (was: T) => void) => void } {
  const past = useRef<T[]>([]);
  return {
    push: (was) => void (past.current = [...past.current.slice(1 - MOST_UNDO), was]),
    undo: (show) => {
      const was = past.current.pop();
      if (was !== undefined) show(was);
    },
  };
}
