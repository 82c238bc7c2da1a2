// A matrix of exact texts; only visible cells are requested.

import { useEffect, useId, useMemo, useRef, useState } from "react";
import type { Cells } from "../transport/protocol";
import { useRequest } from "../ui/useRequest";
import { useSize } from "../ui/useSize";
import { roundToBlocks, scrollToShow, visibleRange } from "../ui/virtualScroll";

const ROW = 22;
const HEAD = 24;
const LETTER = 7.3; // pixels
const ROWS_ASKED = 40;
const COLUMNS_ASKED = 16;
const OWN_WIDTHS = 48; // tables with more columns have one width for all
const LEAST = 46; // pixels of a column

export type Cell = [number, number];

interface Props {
  label: string;
  args: Record<string, unknown>; // of the request for cells
  rows: number;
  columns: number;
  tick: unknown;
  chosen: Cell;
  choose: (cell: Cell) => void;
  pointAt?: (row: number | null) => void;
  marked?: ReadonlySet<number>;
  onEnter?: () => void;
}

export function ResultTable({ label, args, rows, columns, tick, chosen, choose, pointAt, marked, onEnter }: Props) {
  const [box, size] = useSize<HTMLDivElement>();
  const [scrolled, setScrolled] = useState({ top: 0, left: 0 });
  const widest = useRef<number[]>([]); // letters by column, in a table of few columns; else one number for all
  const id = useId();
  const gutter = Math.max(44, String(Math.max(rows - 1, 0)).length * LETTER + 20);
  const own = columns <= OWN_WIDTHS; // all columns are requested, so that each has the width of its content
  const widthOf = (column: number) => Math.min(230, Math.max(LEAST, (widest.current[own ? column : 0] ?? 3) * LETTER + 18));
  const width = widthOf(0);
  const lefts = own ? sums(columns, widthOf) : null;
  const view = { height: size.height - HEAD, width: size.width - gutter };
  const down = visibleRange(rows, ROW, scrolled.top, view.height);
  const across = lefts ? { length: lefts[columns]!, first: 0, beyond: columns, offset: (column: number) => lefts[column]! } : visibleRange(columns, width, scrolled.left, view.width);
  const range = {
    rows: roundToBlocks(down.first, down.beyond, ROWS_ASKED, rows),
    columns: own ? [0, columns] : roundToBlocks(across.first, across.beyond, COLUMNS_ASKED, columns),
  };
  const ready = size.height > 0 && rows > 0 && columns > 0;
  const { found, failure } = useRequest<Cells>(ready ? "window" : null, { ...args, ...range }, tick);
  const lengths = useMemo(() => {
    const cells = found?.cells ?? [];
    const longest = (column: number) => Math.max(String(column).length, ...cells.map((row) => row[column]?.length ?? 0));
    if (own) return Array.from({ length: columns }, (_, column) => longest(column));
    return [Math.max(6, ...cells.flat().map((text) => text.length))];
  }, [found, own, columns]);
  // Columns only grow: scrolling to shorter rows must not move them.
  widest.current = lengths.map((length, k) => Math.max(widest.current[k] ?? 0, Math.min(length, 30)));

  useEffect(() => {
    const element = box.current;
    if (!element || size.height === 0) return;
    const top = scrollToShow(rows, ROW, element.scrollTop, view.height, chosen[0]);
    const left = lefts ? scrollIntoView(lefts[chosen[1]]!, lefts[chosen[1] + 1]!, element.scrollLeft, view.width) : scrollToShow(columns, width, element.scrollLeft, view.width, chosen[1]);
    if (top !== null) element.scrollTop = top;
    if (left !== null) element.scrollLeft = left;
    // Only moving the selected cell scrolls to it: otherwise one could not scroll away from it.
  }, [chosen[0], chosen[1]]); // eslint-disable-line

  const move = (event: React.KeyboardEvent) => {
    const next = moved(event, chosen, rows, columns, Math.max(1, Math.floor(view.height / ROW) - 1));
    if (next) choose(next);
    else if (event.key === "Enter" && onEnter) onEnter();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const textAt = (row: number, column: number): string | null => {
    if (!found || row < found.rows[0] || row >= found.rows[1]) return null;
    return found.cells[row - found.rows[0]]?.[column - found.columns[0]] ?? null;
  };
  const inView = chosen[0] >= down.first && chosen[0] < down.beyond && chosen[1] >= across.first && chosen[1] < across.beyond;
  const shownRows = integers(down.first, down.beyond);
  const shownColumns = integers(across.first, across.beyond);
  if (!rows || !columns) return <p className="quiet">It has {rows} rows and {columns} columns: there is nothing in it.</p>;
  return (
    <>
      {failure && <p className="fault" role="alert">{failure}</p>}
      <div
        ref={box}
        className="result-table"
        role="grid"
        tabIndex={0}
        aria-label={label}
        aria-rowcount={rows}
        aria-colcount={columns}
        aria-activedescendant={inView ? `${id}-${chosen[0]}-${chosen[1]}` : undefined}
        onScroll={(event) => setScrolled({ top: event.currentTarget.scrollTop, left: event.currentTarget.scrollLeft })}
        onKeyDown={move}
        onMouseLeave={() => pointAt?.(null)}
      >
        <div className="result-sheet" role="presentation" style={{ height: down.length + HEAD, width: across.length + gutter }}>
          <div className="result-head" role="row" style={{ height: HEAD }}>
            <span className="corner" role="columnheader" aria-label="row" style={{ width: gutter }} />
            {shownColumns.map((column) => (
              <span key={column} role="columnheader" style={{ left: gutter + across.offset(column), width: widthOf(column) }} className={column === chosen[1] ? "chosen" : ""}>
                {column}
              </span>
            ))}
          </div>
          {shownRows.map((row) => (
            <div
              key={row}
              role="row"
              aria-rowindex={row + 1}
              data-row={row}
              className={`result-row${marked?.has(row) ? " marked" : ""}`}
              style={{ top: HEAD + down.offset(row), height: ROW }}
              onMouseEnter={() => pointAt?.(row)}
            >
              <span role="rowheader" style={{ width: gutter }} className={row === chosen[0] ? "chosen" : ""}>{row}</span>
              {shownColumns.map((column) => {
                const text = textAt(row, column);
                const here = row === chosen[0] && column === chosen[1];
                return (
                  <span
                    key={column}
                    id={`${id}-${row}-${column}`}
                    role="gridcell"
                    aria-selected={here}
                    aria-colindex={column + 1}
                    title={text && text.length > 28 ? text : undefined}
                    className={`${here ? "chosen" : ""}${text === null ? " coming" : ""}`}
                    style={{ left: gutter + across.offset(column), width: widthOf(column) }}
                    onClick={() => choose([row, column])}
                  >
                    {text ?? "…"}
                  </span>
                );
              })}
            </div>
          ))}
        </div>
      </div>
    </>
  );
}

/** The left edges of columns, and the right edge of the last. */
function sums(columns: number, widthOf: (column: number) => number): number[] {
  const edges = [0];
  for (let column = 0; column < columns; column++) edges.push(edges[column]! + widthOf(column));
  return edges;
}

/** The scroll position that shows an interval; null if it is visible. */
function scrollIntoView(from: number, to: number, scrolled: number, space: number): number | null {
  if (from < scrolled) return from;
  return to > scrolled + space ? to - space : null;
}

function integers(first: number, beyond: number): number[] {
  return Array.from({ length: Math.max(0, beyond - first) }, (_, k) => first + k);
}

function moved(event: React.KeyboardEvent, [row, column]: Cell, rows: number, columns: number, page: number): Cell | null {
  const inside = (r: number, c: number): Cell => [Math.min(Math.max(r, 0), rows - 1), Math.min(Math.max(c, 0), columns - 1)];
  if (event.altKey || event.metaKey) return null;
  switch (event.key) {
    case "ArrowDown":
      return inside(row + 1, column);
    case "ArrowUp":
      return inside(row - 1, column);
    case "ArrowRight":
      return inside(row, column + 1);
    case "ArrowLeft":
      return inside(row, column - 1);
    case "PageDown":
      return inside(row + page, column);
    case "PageUp":
      return inside(row - page, column);
    case "Home":
      return inside(event.ctrlKey ? 0 : row, 0);
    case "End":
      return inside(event.ctrlKey ? rows - 1 : row, columns - 1);
    default:
      return null;
  }
}
