// The view of the canvas: what commands do to it, which the canvas sets when it is mounted, and where it can be.

import type { Place } from "../page/edit";
import type { Box, Size } from "./layout";

export const canvasView = {
  fit: () => {},
  zoom: (_by: number) => {},
  actual: () => {},
  reveal: (_block: string) => {},
};

/** The view of a page's upper left block at a zoom, with as much to the left of it and above as fits. */
export function beginningOf(page: Box, blocks: readonly Place[], { width, height }: Size, zoom: number, margin: number): { x: number; y: number; zoom: number } {
  const [x, y] = blocks.reduce((best, at) => (at[0] + at[1] < best[0] + best[1] ? at : best), blocks[0] ?? [page.x, page.y]);
  const left = Math.max(page.x, x - (0.3 * width) / zoom);
  const top = Math.max(page.y, y - (0.3 * height) / zoom);
  return { x: margin - zoom * left, y: margin - zoom * top, zoom };
}

/** How far a view of this size can move, so that an edge of the page stays in it. */
export function panExtent({ x, y, width, height }: Box, across: number, down: number, edge: number): [Place, Place] {
  return [[x - across + edge, y - down + edge], [x + width + across - edge, y + height + down - edge]];
}
