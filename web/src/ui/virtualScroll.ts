// The visible part of a long list of any length: browsers cannot scroll beyond some millions of pixels.

const LONGEST = 8_000_000; // pixels

export interface VisibleRange {
  length: number; // pixels of the whole list in the page
  first: number; // the first item in view
  beyond: number;
  offset(item: number): number; // pixels from the start
}

/** The visible part of `count` items of `size` pixels, in `space` pixels scrolled by `scrolled`. */
export function visibleRange(count: number, size: number, scrolled: number, space: number): VisibleRange {
  const whole = count * size;
  const length = Math.min(whole, LONGEST);
  const visible = Math.ceil(space / size) + 1;
  if (whole <= LONGEST) {
    const first = Math.max(0, Math.min(Math.floor(scrolled / size), count - 1));
    return { length, first, beyond: Math.min(count, first + visible), offset: (item) => item * size };
  }
  const part = Math.min(1, scrolled / Math.max(1, length - space));
  const first = Math.max(0, Math.round(part * (count - Math.floor(space / size))));
  return { length, first, beyond: Math.min(count, first + visible), offset: (item) => scrolled + (item - first) * size };
}

/** The scroll position that shows an item; null if it is visible. */
export function scrollToShow(count: number, size: number, scrolled: number, space: number, item: number): number | null {
  const { length, first } = visibleRange(count, size, scrolled, space);
  const fits = Math.max(1, Math.floor(space / size));
  const exact = length === count * size;
  const begins = exact ? scrolled / size : first;
  if (item >= begins && item < begins + fits) return null;
  const wanted = item < begins ? item : item - fits + 1;
  return exact ? wanted * size : (wanted / Math.max(1, count - fits)) * (length - space);
}

/** Round an interval to whole blocks of items, so that small scrolls need no new request. */
export function roundToBlocks(first: number, beyond: number, block: number, count: number): [number, number] {
  return [Math.floor(first / block) * block, Math.min(count, Math.ceil(beyond / block) * block)];
}
