// Numbers as colours.

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
