// Painting heat maps and surfaces on a canvas element.

import type { Scale } from "./colours";
import { themeColours } from "../ui/themeColours";
import { NO_NUMBER, cssColour } from "./colours";
import type { View } from "./surface";
import { projectionFrom, surfaceOf } from "./surface";

export interface Palette {
  text: string;
  quiet: string;
  line: string;
  paper: string;
  accent: string;
}

export function paletteOf(element: Element): Palette {
  return themeColours(element, ["text", "quiet", "line", "paper", "accent"]);
}

/** Size a canvas in device pixels, for drawing in CSS pixels. */
function prepare(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const fine = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * fine);
  canvas.height = Math.round(height * fine);
  const context = canvas.getContext("2d");
  context?.setTransform(fine, 0, 0, fine, 0, 0);
  return context;
}

type Numbers = readonly (readonly (number | null)[])[];

/** The size of one cell: square if that is large enough to see, else stretched to the space. */
export function cellSize(rows: number, columns: number, width: number, height: number): [number, number] {
  const across = width / Math.max(columns, 1);
  const down = height / Math.max(rows, 1);
  const square = Math.min(across, down);
  return square >= 3 ? [Math.min(across, square * 2.5, 60), Math.min(down, square * 2.5, 60)] : [Math.min(across, 60), Math.min(down, 60)];
}

export function paintMap(canvas: HTMLCanvasElement, cells: Numbers, scale: Scale, size: [number, number], chosen: [number, number] | null, palette: Palette): void {
  const rows = cells.length;
  const columns = cells[0]?.length ?? 0;
  const [across, down] = size;
  const context = prepare(canvas, columns * across, rows * down);
  if (!context || !rows || !columns) return;
  const image = new ImageData(columns, rows);
  cells.forEach((line, row) =>
    line.forEach((value, column) => {
      const [red, green, blue] = scale.colour(value);
      image.data.set([red, green, blue, value === null ? 0 : 255], 4 * (row * columns + column));
    }),
  );
  const small = new OffscreenCanvas(columns, rows);
  small.getContext("2d")!.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, columns * across, rows * down);
  context.strokeStyle = palette.quiet;
  context.lineWidth = 1;
  cells.forEach((line, row) =>
    line.forEach((value, column) => {
      if (value === null) cross(context, column * across, row * down, across, down);
    }),
  );
  if (chosen) {
    const [row, column] = chosen;
    context.lineWidth = 3;
    context.strokeStyle = palette.paper;
    context.strokeRect(column * across + 0.5, row * down + 0.5, Math.max(across - 1, 3), Math.max(down - 1, 3));
    context.lineWidth = 1.5;
    context.strokeStyle = palette.text;
    context.strokeRect(column * across + 0.5, row * down + 0.5, Math.max(across - 1, 3), Math.max(down - 1, 3));
  }
}

/** Cells that are not finite are crossed out, so that no colour is mistaken for them. */
function cross(context: CanvasRenderingContext2D, x: number, y: number, width: number, height: number): void {
  context.fillStyle = cssColour(NO_NUMBER);
  context.globalAlpha = 0.25;
  context.fillRect(x, y, width, height);
  context.globalAlpha = 1;
  if (width < 5 || height < 5) return;
  context.beginPath();
  context.moveTo(x + 2, y + 2);
  context.lineTo(x + width - 2, y + height - 2);
  context.moveTo(x + width - 2, y + 2);
  context.lineTo(x + 2, y + height - 2);
  context.stroke();
}

export function paintSurface(canvas: HTMLCanvasElement, cells: Numbers, scale: Scale, bounds: [number, number], view: View, width: number, height: number, palette: Palette): void {
  const context = prepare(canvas, width, height);
  if (!context) return;
  // In a wide space the surface is at most twice as wide as high.
  const high = height / 1.45;
  const wide = Math.min(width / 1.9, 2 * high);
  const point = ([x, y]: readonly [number, number]): [number, number] => [width / 2 + x * wide, height / 2 + y * Math.min(high, wide)];
  const project = projectionFrom(view);
  const ground = [[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]].map(([x, y]) => point(project(x!, y!, -0.5).at)); // prettier-ignore
  polygon(context, ground);
  context.strokeStyle = palette.line;
  context.stroke();
  const quads = surfaceOf(cells, ...bounds, view);
  context.lineWidth = 0.5;
  for (const quad of quads) {
    polygon(context, quad.corners.map(point));
    context.fillStyle = cssColour(scale.colour(quad.value));
    context.fill();
    // Edges show the shape where neighbours have nearly the same colour.
    context.globalAlpha = quads.length > 1000 ? 0.2 : 0.45;
    context.strokeStyle = "black"; // the colours are the same on light and dark
    context.stroke();
    context.globalAlpha = 1;
  }
  context.fillStyle = palette.text;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  context.strokeStyle = palette.paper;
  context.lineWidth = 4;
  context.lineJoin = "round";
  const name = (text: string, x: number, y: number) => {
    const at = point(project(x, y, -0.5).at);
    context.strokeText(text, ...at); // a halo: the surface may be behind it
    context.fillText(text, ...at);
  };
  name("columns →", 0, 0.68);
  name("rows →", -0.72, 0);
}

function polygon(context: CanvasRenderingContext2D, points: [number, number][]): void {
  context.beginPath();
  points.forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.closePath();
}
