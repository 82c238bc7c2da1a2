// Numbers along an axis of rows or columns.

/** The rows or columns that are numbered: every one, or every 2nd, 5th, 10th, …, so that their texts do not touch.
 *  `size` is that of one row or column, in pixels, and `least` the distance of two texts. */
export function axisNumbers(count: number, size: number, least: number): number[] {
  if (!(size > 0)) return []; // a panel too small for its cells
  const ten = 10 ** Math.floor(Math.log10(Math.max(1, least / size)));
  const every = [1, 2, 5].map((k) => k * ten).find((step) => step * size >= least) ?? 10 * ten;
  return Array.from({ length: Math.ceil(count / every) || 0 }, (_, k) => k * every);
}
