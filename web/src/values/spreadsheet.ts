// Spreadsheet behaviour: cursor, ranges, and tables of text in the clipboard.

/** The current cell, and the corner where the selected range started. */
export interface Cursor {
  row: number;
  column: number;
  fromRow: number;
  fromColumn: number;
}

export interface Range {
  top: number;
  left: number;
  bottom: number; // inclusive
  right: number;
}

export const START: Cursor = { row: 0, column: 0, fromRow: 0, fromColumn: 0 };

export function rangeOf(cursor: Cursor): Range {
  return {
    top: Math.min(cursor.row, cursor.fromRow),
    left: Math.min(cursor.column, cursor.fromColumn),
    bottom: Math.max(cursor.row, cursor.fromRow),
    right: Math.max(cursor.column, cursor.fromColumn),
  };
}

export function isInside(range: Range, row: number, column: number): boolean {
  return row >= range.top && row <= range.bottom && column >= range.left && column <= range.right;
}

export function cursorAt(row: number, column: number, rows: number, columns: number, from: Cursor | null = null): Cursor {
  const r = Math.max(0, Math.min(row, rows - 1));
  const c = Math.max(0, Math.min(column, columns - 1));
  return { row: r, column: c, fromRow: from ? from.fromRow : r, fromColumn: from ? from.fromColumn : c };
}

/** The cursor after a key, or null if the key does not move it. */
export function moveCursor(cursor: Cursor, key: string, far: boolean, extend: boolean, rows: number, columns: number, page: number): Cursor | null {
  const to = (row: number, column: number) => cursorAt(row, column, rows, columns, extend ? cursor : null);
  const { row, column } = cursor;
  switch (key) {
    case "ArrowUp":
      return to(far ? 0 : row - 1, column);
    case "ArrowDown":
      return to(far ? rows - 1 : row + 1, column);
    case "ArrowLeft":
      return to(row, far ? 0 : column - 1);
    case "ArrowRight":
      return to(row, far ? columns - 1 : column + 1);
    case "Home":
      return to(far ? 0 : row, 0);
    case "End":
      return to(far ? rows - 1 : row, columns - 1);
    case "PageUp":
      return to(row - page, column);
    case "PageDown":
      return to(row + page, column);
    default:
      return null;
  }
}

/** The next cell in reading order, or null at the end: there Tab leaves the grid. */
export function nextCell(cursor: Cursor, back: boolean, rows: number, columns: number): Cursor | null {
  const k = cursor.row * columns + cursor.column + (back ? -1 : 1);
  if (k < 0 || k >= rows * columns) return null;
  return cursorAt(Math.floor(k / columns), k % columns, rows, columns);
}

/** Cells as spreadsheets copy them: tabs between cells, lines between rows, quotes where a cell holds either. */
export function formatTable(cells: readonly (readonly string[])[]): string {
  return cells.map((row) => row.map(quoted).join("\t")).join("\n");
}

function quoted(text: string): string {
  return /[\t\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

/** Parse a table copied from a spreadsheet. Shorter rows are padded with empty cells. */
export function parseTable(text: string): string[][] {
  const rows: string[][] = [[]];
  let k = 0;
  while (k <= text.length) {
    const [cell, next] = text[k] === '"' ? quotedCell(text, k) : bareCell(text, k);
    rows.at(-1)!.push(cell);
    k = next;
    if (text[k] === "\t") k++;
    else if (k >= text.length) break;
    else {
      k += text.startsWith("\r\n", k) ? 2 : 1;
      if (k >= text.length) break; // a final line end starts no row
      rows.push([]);
    }
  }
  const width = Math.max(...rows.map((row) => row.length));
  return rows.map((row) => [...row, ...new Array<string>(width - row.length).fill("")]);
}

function bareCell(text: string, from: number): [string, number] {
  let end = from;
  while (end < text.length && !"\t\n\r".includes(text[end]!)) end++;
  return [text.slice(from, end), end];
}

/** A quoted cell must end at a cell boundary; otherwise it is text that starts with a quote. */
function quotedCell(text: string, from: number): [string, number] {
  let cell = "";
  for (let k = from + 1; k < text.length; k++) {
    if (text[k] !== '"') cell += text[k];
    else if (text[k + 1] === '"') {
      cell += '"';
      k++;
    } else if (k + 1 >= text.length || "\t\n\r".includes(text[k + 1]!)) {
      // Quotes are removed only where they are needed: "a" may be a text that has quotes.
      return /[\t\n\r]/.test(cell) || cell.includes('"') ? [cell, k + 1] : [text.slice(from, k + 1), k + 1];
    } else break;
  }
  return bareCell(text, from);
}
