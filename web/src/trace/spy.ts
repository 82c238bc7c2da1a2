// The spy plot's picture: where ids are, as counts on a grid.

import type { Spy, SpyAxis } from "../transport/protocol";
import type { Grid } from "./grid";

/** The rows of one cell of an axis, [first, last]. */
export function rowsOfCell(axis: SpyAxis, cell: number): [number, number] {
  const first = Math.ceil((cell * axis.rows) / axis.cells);
  return [first, Math.max(first, Math.ceil(((cell + 1) * axis.rows) / axis.cells) - 1)];
}

/** The cell of a row. */
export function cellOfRow(axis: SpyAxis, row: number): number {
  return Math.floor((row * axis.cells) / Math.max(axis.rows, 1));
}

/** How strong a cell is drawn: by the logarithm of its count, so that single ids can be seen beside hot rows. */
export function strength(count: number, most: number): number {
  if (count <= 0) return 0;
  return most <= 1 ? 1 : 0.35 + (0.65 * Math.log(count)) / Math.log(most);
}

/** The label of a bin of degrees, (2^(k-1), 2^k]. */
export function binText(k: number): string {
  const last = 2 ** k;
  const first = k < 2 ? last : last / 2 + 1;
  return first === last ? String(last) : `${first.toLocaleString("en")}–${last.toLocaleString("en")}`;
}

export function rangeText([first, last]: [number, number]): string {
  return first === last ? `row ${first}` : `rows ${first} to ${last}`;
}

export function cellText(spy: Spy, down: number, across: number): string {
  const count = spy.cells.find(([d, a]) => d === down && a === across)?.[2] ?? 0;
  const [above, beside] = [rangeText(rowsOfCell(spy.across, across)), rangeText(rowsOfCell(spy.down, down))];
  return `${spy.down.pins.join(", ")} ${beside}, ${spy.across.pins.join(", ")} ${above}: ${count === 1 ? "1 id" : `${count.toLocaleString("en")} ids`}`;
}

export function gridOf(spy: Spy): Grid {
  const cells = spy.cells.map(([down, across, count]): Grid["cells"][number] => [down, across, strength(count, spy.most)]);
  return { down: spy.down.cells, across: spy.across.cells, cells, columns: spy.across.hot.map(([row]) => cellOfRow(spy.across, row)) };
}
