// The cells of a value as texts, for any rank. Only the server parses them.

/** Texts in row-major order, as many as the shape has elements. */
export interface Grid {
  readonly shape: readonly number[];
  readonly cells: readonly string[];
}

/** The visible part of a grid: a matrix, a vector as a column, or one cell. */
export interface Matrix {
  rows: number;
  columns: number;
  first: number; // index of its first cell
}

export const MOST_EDITED = 2000; // elements; larger values are read only

export function product(sizes: readonly number[]): number {
  return sizes.reduce((a, b) => a * b, 1);
}

/** The text of a new cell. */
export function blankOf(dtype: string): string {
  return dtype === "string" ? "" : dtype === "bool" ? "false" : "0";
}

export function leadingOf(shape: readonly number[]): readonly number[] {
  return shape.slice(0, Math.max(shape.length - 2, 0));
}

export function matrixOf(shape: readonly number[], at: readonly number[]): Matrix {
  const rows = shape.length === 0 ? 1 : shape.length === 1 ? shape[0]! : shape.at(-2)!;
  const columns = shape.length < 2 ? 1 : shape.at(-1)!;
  const first = leadingOf(shape).reduce((sum, size, axis) => sum * size + (at[axis] ?? 0), 0) * rows * columns;
  return { rows, columns, first };
}

export function cellAt(grid: Grid, at: readonly number[], row: number, column: number): string {
  const { columns, first } = matrixOf(grid.shape, at);
  return grid.cells[first + row * columns + column] ?? "";
}

/** One index per leading axis, clamped to the shape. */
export function clampIndices(shape: readonly number[], at: readonly number[]): number[] {
  return leadingOf(shape).map((size, axis) => Math.max(0, Math.min(at[axis] ?? 0, size - 1)));
}

/** Change the shape: cells keep their position, new cells are blank. */
export function reshape(grid: Grid, shape: readonly number[], blank: string): Grid {
  const rank = Math.max(grid.shape.length, shape.length);
  const from = padded(grid.shape, rank);
  const to = padded(shape, rank);
  const cells: string[] = new Array<string>(product(to));
  const place: number[] = new Array<number>(rank).fill(0);
  for (let k = 0; k < cells.length; k++) {
    let old = 0;
    let inside = true;
    for (let axis = 0; axis < rank; axis++) {
      if (place[axis]! >= from[axis]!) inside = false;
      old = old * from[axis]! + place[axis]!;
    }
    cells[k] = inside ? (grid.cells[old] ?? blank) : blank;
    for (let axis = rank - 1; axis >= 0 && ++place[axis]! >= to[axis]!; axis--) place[axis] = 0;
  }
  return { shape: [...shape], cells };
}

/** Set the shape: with as many cells, their order stays, as in `numpy.reshape`; otherwise cells keep their position. */
export function withShape(grid: Grid, shape: readonly number[], blank: string): Grid {
  return product(shape) === grid.cells.length ? { shape: [...shape], cells: grid.cells } : reshape(grid, shape, blank);
}

/** A vector is a column: a vector and a scalar get trailing axes; a matrix gets leading ones. */
function padded(shape: readonly number[], rank: number): number[] {
  const matrix = shape.length === 0 && rank > 0 ? [1] : [...shape];
  if (matrix.length === 1 && rank > 1) matrix.push(1);
  return [...new Array<number>(rank - matrix.length).fill(1), ...matrix];
}

/** The shape enlarged to so many rows and columns; it never shrinks, and gains an axis only if needed. */
export function grown(shape: readonly number[], rows: number, columns: number): number[] {
  const matrix = matrixOf(shape, []);
  const height = Math.max(rows, matrix.rows);
  const width = Math.max(columns, matrix.columns);
  if (shape.length < 2 && width > 1) return [height, width];
  if (shape.length === 0) return height > 1 ? [height] : [];
  if (shape.length === 1) return [height];
  return [...shape.slice(0, -2), height, width];
}

/** Put a block of texts at a position; the grid grows if needed. */
export function put(grid: Grid, at: readonly number[], row: number, column: number, block: readonly (readonly string[])[], blank: string): Grid {
  const width = Math.max(0, ...block.map((line) => line.length));
  const shape = grown(grid.shape, row + block.length, column + width);
  const target = shape.length === grid.shape.length && shape.every((size, k) => size === grid.shape[k]) ? grid : reshape(grid, shape, blank);
  const cells = [...target.cells];
  const { columns, first } = matrixOf(shape, at);
  block.forEach((line, r) => line.forEach((text, c) => (cells[first + (row + r) * columns + column + c] = text)));
  return { shape: target.shape, cells };
}

/** Insert a row or column before index `k`. */
export function addLine(grid: Grid, axis: "row" | "column", k: number, blank: string): Grid {
  const { rows, columns } = matrixOf(grid.shape, []);
  const wider = reshape(grid, grown(grid.shape, rows + (axis === "row" ? 1 : 0), columns + (axis === "column" ? 1 : 0)), blank);
  const last = axis === "row" ? rows : columns;
  return mapped(wider, axis, (old) => (old === k ? last : old > k ? old - 1 : old));
}

export function removeLine(grid: Grid, axis: "row" | "column", k: number): Grid {
  if (grid.shape.length === 0 || (axis === "column" && grid.shape.length < 2)) return grid;
  const from = axis === "column" ? grid.shape.length - 1 : Math.max(grid.shape.length - 2, 0);
  const size = grid.shape[from]!;
  if (k < 0 || k >= size) return grid;
  const moved = mapped(grid, axis, (old) => (old >= k ? Math.min(old + 1, size - 1) : old));
  return reshape(moved, grid.shape.map((old, axisOf) => (axisOf === from ? old - 1 : old)), "");
}

/** Permute the rows or columns of every matrix of a grid. */
function mapped(grid: Grid, axis: "row" | "column", from: (k: number) => number): Grid {
  const { rows, columns } = matrixOf(grid.shape, []);
  const size = rows * columns;
  const cells = grid.cells.map((_, k) => {
    const inner = size ? k % size : 0;
    const row = Math.floor(inner / columns);
    const column = inner % columns;
    const source = axis === "row" ? from(row) * columns + column : row * columns + from(column);
    return grid.cells[k - inner + source]!;
  });
  return { shape: grid.shape, cells };
}

/** Parse a typed shape: `2,3`, `[2, 3]`, `2x3`, nothing for a scalar; null if it is not a shape. */
export function readShape(text: string): number[] | null {
  const bare = text.trim().replace(/^[[({]|[\])}]$/g, "").trim();
  if (!bare) return [];
  const parts = bare.split(/\s*[,x×\s]\s*/).filter(Boolean);
  return parts.every((part) => /^\d{1,9}$/.test(part)) ? parts.map(Number) : null;
}

/** The indices of the cell that a server message is about, or null. */
export function faultyPlace(message: string): number[] | null {
  const found = /in cell \[([\d, ]*)\]/.exec(message);
  return found ? found[1]!.split(",").map((part) => part.trim()).filter(Boolean).map(Number) : null;
}
