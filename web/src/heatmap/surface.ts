// Numbers as a surface in perspective. Nothing here draws.

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
