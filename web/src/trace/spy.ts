// The spy plot's picture: where ids are, as counts on a grid.

import type { Spy, SpyAxis } from "../transport/protocol";

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

export interface SpyColours {
  ink: string;
  hot: string;
  paper: string;
  grid: string;
}

export function paintSpy(canvas: HTMLCanvasElement, spy: Spy, width: number, height: number, colours: SpyColours): void {
  const fine = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * fine));
  canvas.height = Math.max(1, Math.round(height * fine));
  const pen = canvas.getContext("2d");
  if (!pen) return;
  pen.setTransform(fine, 0, 0, fine, 0, 0);
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, width, height);
  const across = width / spy.across.cells;
  const down = height / spy.down.cells;
  pen.fillStyle = colours.hot;
  pen.globalAlpha = 0.14;
  for (const [row] of spy.across.hot) pen.fillRect(cellOfRow(spy.across, row) * across, 0, Math.max(across, 2), height);
  pen.fillStyle = colours.ink;
  for (const [d, a, count] of spy.cells) {
    pen.globalAlpha = strength(count, spy.most);
    // At least a pixel and a half, so that a single id among millions of rows is seen.
    pen.fillRect(a * across, d * down, Math.max(across, 1.5), Math.max(down, 1.5));
  }
  pen.globalAlpha = 1;
  pen.strokeStyle = colours.grid;
  pen.strokeRect(0.5, 0.5, width - 1, height - 1);
}
