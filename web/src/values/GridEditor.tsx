// A value as a spreadsheet: cells, shape, rows and columns to add and remove.

import { useEffect, useState } from "react";
import { LeadingIndices } from "../ui/LeadingIndices";
import type { Grid } from "./grid";
import { MOST_EDITED, addLine, blankOf, cellAt, clampIndices, matrixOf, product, put, readShape, removeLine, withShape } from "./grid";
import { GridTable, useUndo } from "./GridTable";
import { widthOf } from "./requests";
import type { Cursor, Range } from "./spreadsheet";
import { START, cursorAt } from "./spreadsheet";

interface Props {
  label: string;
  grid: Grid;
  dtype: string;
  faulty: readonly number[] | null;
  change: (grid: Grid) => void;
  reject: (message: string) => void;
}

export function GridEditor({ label, grid, dtype, faulty, change, reject }: Props) {
  const [at, setAt] = useState<number[]>(clampIndices(grid.shape, []));
  const [cursor, setCursor] = useState<Cursor>(START);
  const { rows, columns } = matrixOf(grid.shape, at);
  const blank = blankOf(dtype);
  const past = useUndo<Grid>();
  const inside = clampIndices(grid.shape, at);
  const cell = faulty && faulty.length === grid.shape.length ? placeIn(faulty) : null;

  // Move to an invalid cell: it may be far away, or in another matrix.
  useEffect(() => {
    if (!faulty || faulty.length !== grid.shape.length) return;
    setAt(faulty.slice(0, -2));
    setCursor(cursorAt(...placeIn(faulty), rows, columns));
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [faulty]);

  const take = (next: Grid) => {
    if (next.cells.length > MOST_EDITED) {
      reject(`At most ${MOST_EDITED} cells are edited here, and this would be ${next.cells.length}. Paste or import what is larger.`);
      return;
    }
    past.push(grid);
    change(next);
    const size = matrixOf(next.shape, []);
    if (cursor.row >= size.rows || cursor.column >= size.columns) setCursor(cursorAt(cursor.row, cursor.column, size.rows, size.columns));
  };
  const clear = (range: Range) => {
    const block = Array.from({ length: range.bottom - range.top + 1 }, () => new Array<string>(range.right - range.left + 1).fill(""));
    take(put(grid, inside, range.top, range.left, block, blank));
  };
  const wrongMatrix = cell !== null && !faulty!.slice(0, -2).every((index, axis) => inside[axis] === index);
  return (
    <>
      <div className="value-tools">
        <ShapeField key={grid.shape.join()} shape={grid.shape} reject={reject} take={(shape) => take(withShape(grid, shape, blank))} />
        <span className="value-buttons" role="group" aria-label="Rows and columns">
          <button onClick={() => take(addLine(grid, "row", Math.min(cursor.row + 1, rows), blank))} title="A row under the cursor">+ row</button>
          <button onClick={() => take(removeLine(grid, "row", cursor.row))} disabled={grid.shape.length === 0 || rows === 0} title="Without the cursor's row">− row</button>
          <button onClick={() => take(addLine(grid, "column", Math.min(cursor.column + 1, columns), blank))} title="A column right of the cursor">+ column</button>
          <button onClick={() => take(removeLine(grid, "column", cursor.column))} disabled={grid.shape.length < 2 || columns === 0} title="Without the cursor's column">− column</button>
        </span>
        <LeadingIndices shape={grid.shape} at={inside} change={setAt} />
      </div>
      {product(grid.shape) === 0 && <p className="quiet">There are no cells. Add a row or a column, or set the shape.</p>}
      <GridTable
        label={label}
        rows={rows}
        columns={columns}
        text={(r, c) => cellAt(grid, inside, r, c)}
        cursor={cursor}
        setCursor={setCursor}
        width={widthOf(dtype)}
        faulty={wrongMatrix ? null : cell}
        edit={{ put: (r, c, block) => take(put(grid, inside, r, c, block, blank)), clear, undo: () => past.undo(change) }}
      />
      <p className="quiet value-hint">Type to replace, F2 to edit, Tab and Enter go on, Shift+arrows select, Ctrl+C and Ctrl+V exchange with a spreadsheet, Ctrl+Enter applies.</p>
    </>
  );
}

function placeIn(place: readonly number[]): [number, number] {
  return place.length === 0 ? [0, 0] : place.length === 1 ? [place[0]!, 0] : [place.at(-2)!, place.at(-1)!];
}

function ShapeField({ shape, take, reject }: { shape: readonly number[]; take: (shape: number[]) => void; reject: (message: string) => void }) {
  const [text, setText] = useState(shape.join(", "));
  const found = readShape(text);
  const finish = () => {
    if (!found) return;
    const count = product(found);
    if (count > MOST_EDITED || found.length > 32) reject(`At most ${MOST_EDITED} cells are edited here, and shape [${found.join(", ")}] has ${count}.`);
    else if (found.join() !== shape.join()) take(found);
  };
  return (
    <label className="value-shape">
      Shape
      <input
        value={text}
        placeholder="one number"
        aria-label="Shape of the value"
        data-escape={text === shape.join(", ") ? undefined : true}
        aria-invalid={found === null}
        onChange={(event) => setText(event.target.value)}
        onBlur={finish}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.ctrlKey) finish();
          if (event.key === "Escape" && text !== shape.join(", ")) {
            event.preventDefault();
            setText(shape.join(", "));
          }
        }}
      />
    </label>
  );
}
