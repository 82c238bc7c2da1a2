// Which rows and columns of a table are visible. A table of millions of rows is taller than a browser can scroll, so the
// scroll position selects a fraction of the table, not a pixel; the table moves by whole rows and columns.

import type { RefObject } from "react";
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";

export const ROW = 24;
export const HEAD = 24;
const FARTHEST = 4_000_000; // pixels that every browser can scroll

export interface VisibleCells {
  row: number;
  column: number;
  side: number; // width of the row numbers
  fitRows: number;
  fitColumns: number;
  space: { width: number; height: number };
  scroll: () => void;
  reveal: (row: number, column: number) => void;
}

export function useVisibleCells(box: RefObject<HTMLElement | null>, rows: number, columns: number, width: number): VisibleCells {
  const [size, setSize] = useState({ width: 0, height: 0 });
  const [first, setFirst] = useState({ row: 0, column: 0 });
  const target = useRef({ top: -1, left: -1 });
  useEffect(() => {
    const observer = new ResizeObserver(() => {
      const found = box.current;
      if (found) setSize({ width: found.clientWidth, height: found.clientHeight });
    });
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, [box]);
  const side = Math.max(62, 18 + 8 * String(rows).length);
  const fitRows = Math.max(1, Math.floor((size.height - HEAD) / ROW));
  const fitColumns = Math.max(1, Math.floor((size.width - side) / width));
  const lastRow = Math.max(0, rows - fitRows);
  const lastColumn = Math.max(0, columns - fitColumns);
  const tall = Math.min(lastRow * ROW, FARTHEST);
  const broad = Math.min(lastColumn * width, FARTHEST);

  const scroll = useCallback(() => {
    const found = box.current;
    if (!found) return;
    const { scrollTop, scrollLeft } = found;
    // Keep a position set by `reveal`, which the bar cannot represent exactly.
    setFirst((was) => ({
      row: Math.abs(scrollTop - target.current.top) < 2 ? was.row : tall ? Math.round(Math.min(scrollTop / tall, 1) * lastRow) : 0,
      column: Math.abs(scrollLeft - target.current.left) < 2 ? was.column : broad ? Math.round(Math.min(scrollLeft / broad, 1) * lastColumn) : 0,
    }));
  }, [box, tall, broad, lastRow, lastColumn]);

  const reveal = useCallback(
    (row: number, column: number) => {
      setFirst((was) => {
        const next = {
          row: Math.min(lastRow, Math.max(Math.min(was.row, row), row - fitRows + 1)),
          column: Math.min(lastColumn, Math.max(Math.min(was.column, column), column - fitColumns + 1)),
        };
        return next.row === was.row && next.column === was.column ? was : next;
      });
    },
    [lastRow, lastColumn, fitRows, fitColumns],
  );

  // If the bar is too coarse, the wheel moves by rows.
  const coarse = lastRow * ROW > FARTHEST;
  useEffect(() => {
    const found = box.current!;
    const wheel = (event: WheelEvent) => {
      if (!event.deltaY || event.ctrlKey || event.shiftKey) return;
      event.preventDefault();
      const by = Math.sign(event.deltaY) * Math.max(1, Math.round(Math.abs(event.deltaY) / ROW));
      setFirst((was) => ({ ...was, row: Math.max(0, Math.min(was.row + by, lastRow)) }));
    };
    if (!coarse) return;
    found.addEventListener("wheel", wheel, { passive: false });
    return () => found.removeEventListener("wheel", wheel);
  }, [box, coarse, lastRow]);

  const row = Math.min(first.row, lastRow);
  const column = Math.min(first.column, lastColumn);
  useLayoutEffect(() => {
    const found = box.current;
    if (!found) return;
    const top = lastRow ? (row / lastRow) * tall : 0;
    const left = lastColumn ? (column / lastColumn) * broad : 0;
    // The bar follows only if it is off by a cell, so that it does not fight a drag.
    if (Math.abs(top - found.scrollTop) > ROW) found.scrollTop = top;
    if (Math.abs(left - found.scrollLeft) > width) found.scrollLeft = left;
    target.current = { top: found.scrollTop, left: found.scrollLeft };
  }, [box, row, column, tall, broad, lastRow, lastColumn, width]);

  return { row, column, side, fitRows, fitColumns, space: { width: size.width + broad, height: size.height + tall }, scroll, reveal };
}
