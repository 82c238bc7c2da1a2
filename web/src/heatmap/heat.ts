// Numbers as colours, and as a surface in perspective. Nothing here draws.

export type Colour = [number, number, number];

/** Even steps of lightness from dark to light, so that equal differences look equal. */
const RISING: Colour[] = [
  [68, 1, 84],
  [70, 50, 127],
  [54, 92, 141],
  [39, 127, 142],
  [31, 161, 135],
  [74, 194, 109],
  [159, 218, 58],
  [253, 231, 37],
];
/** From blue over a pale middle to red: the middle is zero. */
const DIVERGING: Colour[] = [
  [33, 70, 153],
  [80, 133, 196],
  [158, 194, 223],
  [240, 240, 240],
  [239, 177, 147],
  [210, 96, 77],
  [150, 20, 40],
];
export const NO_NUMBER: Colour = [128, 128, 128];

export interface Scale {
  low: number;
  high: number;
  diverging: boolean;
  colour(value: number | null): Colour;
}

/** Colours for numbers between two bounds; zero is in the middle if it is between them. */
export function scaleOf(low: number | null, high: number | null): Scale {
  const diverging = low !== null && high !== null && low < 0 && high > 0;
  const size = Math.max(Math.abs(low ?? 0), Math.abs(high ?? 0));
  const from = diverging ? -size : (low ?? 0);
  const to = diverging ? size : (high ?? 0);
  const stops = diverging ? DIVERGING : RISING;
  return {
    low: from,
    high: to,
    diverging,
    colour: (value) => (value === null ? NO_NUMBER : between(stops, to > from ? (value - from) / (to - from) : 0.5)),
  };
}

export function between(stops: readonly Colour[], part: number): Colour {
  const at = Math.min(Math.max(part, 0), 1) * (stops.length - 1);
  const k = Math.min(Math.floor(at), stops.length - 2);
  const rest = at - k;
  const [a, b] = [stops[k]!, stops[k + 1]!];
  return [0, 1, 2].map((c) => Math.round(a[c]! + (b[c]! - a[c]!) * rest)) as Colour;
}

export function cssColour([red, green, blue]: Colour): string {
  return `rgb(${red} ${green} ${blue})`;
}

/** One piece of the surface: four corners on the screen, and the number that colours it. */
export interface Quad {
  corners: [number, number][];
  value: number;
  row: number;
  column: number;
}

export interface View {
  turn: number; // radians around the vertical axis
  tilt: number; // radians above the ground
}

/** The numbers as a surface in [-1, 1]², the farthest piece first, so that nearer ones are painted over it. */
export function surfaceOf(cells: readonly (readonly (number | null)[])[], low: number, high: number, view: View): Quad[] {
  const rows = cells.length;
  const columns = cells[0]?.length ?? 0;
  const made: { quad: Quad; depth: number }[] = [];
  const project = projectionFrom(view);
  const place = (row: number, column: number, value: number) =>
    project(column / Math.max(columns - 1, 1) - 0.5, row / Math.max(rows - 1, 1) - 0.5, high > low ? (value - low) / (high - low) - 0.5 : 0);
  for (let row = 0; row + 1 < rows; row++) {
    for (let column = 0; column + 1 < columns; column++) {
      const around: [number, number][] = [[row, column], [row, column + 1], [row + 1, column + 1], [row + 1, column]]; // prettier-ignore
      const values = around.map(([r, c]) => cells[r]![c] ?? null);
      if (values.some((value) => value === null)) continue; // a hole where there is no number
      const corners = around.map(([r, c], k) => place(r, c, values[k]!));
      const value = (values as number[]).reduce((sum, one) => sum + one, 0) / 4;
      const depth = corners.reduce((sum, one) => sum + one.depth, 0);
      made.push({ quad: { corners: corners.map((one) => one.at), value, row, column }, depth });
    }
  }
  return made.sort((a, b) => b.depth - a.depth).map((one) => one.quad);
}

/** Projects a point of the box onto the screen (y down), with its depth. */
export function projectionFrom({ turn, tilt }: View): (x: number, y: number, z: number) => { at: [number, number]; depth: number } {
  const [ct, st, cv, sv] = [Math.cos(turn), Math.sin(turn), Math.cos(tilt), Math.sin(tilt)];
  return (x, y, z) => {
    const across = x * ct - y * st;
    const away = -(x * st + y * ct);
    return { at: [across, -(z * 0.7 * cv + away * sv)], depth: away * cv - z * 0.7 * sv };
  };
}
