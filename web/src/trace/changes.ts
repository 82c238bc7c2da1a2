// Rows over time: the rows of a Variable that each step changed, as a grid of rows and steps.

import type { RowChanges } from "../transport/protocol";
import { shortNumber } from "../values/mini";
import type { Grid } from "./grid";

type Picture = NonNullable<RowChanges["picture"]>;

/** The numbers of one cell of an axis of `size`, [first, last]. */
export function rangeOfCell(size: number, cells: number, cell: number): [number, number] {
  const first = Math.ceil((cell * size) / cells);
  return [first, Math.max(first, Math.ceil(((cell + 1) * size) / cells) - 1)];
}

/** How strong a cell is drawn: by the root of its distance, so that short ways can be seen beside long ones. */
export function strengthOf(distance: number | null, most: number | null): number {
  if (distance === null) return 1; // no longer a number
  return 0.18 + 0.82 * Math.sqrt(most ? Math.min(1, distance / most) : 0);
}

export function gridOf(picture: Picture): Grid {
  const changed = new Set(picture.cells.map(([row]) => row));
  const shaded = new Set(Array.from({ length: picture.down }, (_, row) => row).filter((row) => !changed.has(row)));
  return { down: picture.down, across: picture.across, cells: picture.cells.map(([row, column, , distance]) => [row, column, strengthOf(distance, picture.most)]), shaded };
}

export function distanceText(distance: number | null): string {
  return distance === null ? "to no number" : shortNumber(distance);
}

/** What happened in a cell: `row 3, step 12: moved 0.5`. */
export function cellText(picture: Picture, down: number, across: number): string {
  const rows = rangeOfCell(picture.rows, picture.down, down);
  const steps = rangeOfCell(picture.last - picture.first + 1, picture.across, across).map((step) => step + picture.first) as [number, number];
  const [, , count = 0, distance = 0] = picture.cells.find(([row, column]) => row === down && column === across) ?? [];
  const where = `${rangeText("row", rows)}, ${rangeText("step", steps)}`;
  if (!count) return `${where}: unchanged`;
  return `${where}: ${count === 1 ? "" : `${count.toLocaleString("en")} changes, `}moved ${distanceText(distance)}`;
}

export function rangeText(what: string, [first, last]: [number, number]): string {
  return first === last ? `${what} ${first.toLocaleString("en")}` : `${what}s ${first.toLocaleString("en")} to ${last.toLocaleString("en")}`;
}
