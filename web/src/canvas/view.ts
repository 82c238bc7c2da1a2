// What commands do to the canvas; the canvas sets these when it is mounted.

export const canvasView = {
  fit: () => {},
  zoom: (_by: number) => {},
  actual: () => {},
  reveal: (_block: string) => {},
};
