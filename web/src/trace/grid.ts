// A picture of cells on a grid, each as strong as its number: the spy plot, and rows over time.

export interface Grid {
  down: number;
  across: number;
  cells: [number, number, number][]; // down, across, strength from 0 to 1
  columns?: number[]; // marked from top to bottom
  shaded?: ReadonlySet<number>; // rows of cells in which nothing happens
}

export interface GridColours {
  ink: string;
  mark: string;
  paper: string;
  line: string;
}

export function paintGrid(canvas: HTMLCanvasElement, grid: Grid, width: number, height: number, colours: GridColours): void {
  const fine = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * fine));
  canvas.height = Math.max(1, Math.round(height * fine));
  const pen = canvas.getContext("2d");
  if (!pen) return;
  pen.setTransform(fine, 0, 0, fine, 0, 0);
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, width, height);
  const across = width / grid.across;
  const down = height / grid.down;
  pen.fillStyle = colours.line;
  pen.globalAlpha = 0.3;
  for (const row of grid.shaded ?? []) pen.fillRect(0, row * down, width, down);
  pen.fillStyle = colours.mark;
  pen.globalAlpha = 0.14;
  for (const column of grid.columns ?? []) pen.fillRect(column * across, 0, Math.max(across, 2), height);
  pen.fillStyle = colours.ink;
  for (const [row, column, strength] of grid.cells) {
    pen.globalAlpha = strength;
    // At least a pixel and a half, so that a single cell among millions is visible.
    pen.fillRect(column * across, row * down, Math.max(across, 1.5), Math.max(down, 1.5));
  }
  pen.globalAlpha = 1;
  pen.strokeStyle = colours.line;
  pen.strokeRect(0.5, 0.5, width - 1, height - 1);
}
