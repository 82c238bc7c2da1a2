// Ranges and ticks of the chart's axes, for every finite number. uPlot's own support fewer: its logarithmic ticks below
// 1e-25 never end, and above 1e32 a linear axis has none.

export type Range = [low: number, high: number];

const LARGEST = Number.MAX_VALUE / 4; // a linear axis has limits up to twice this, whose differences are finite
const MOST_TICKS = 200;
const FLAT = 1e-11; // values that differ by less, relative to their size, are one value with rounding errors

export const isNumber = (value: number | null): value is number => Number.isFinite(value);

/** A value that a linear axis can show: larger ones are shown as the largest. */
export const withinScale = (value: number) => Math.max(-LARGEST, Math.min(LARGEST, value));

/** The runs shown on the x axis, at least one run wide. */
export function runRange(min: number | null, max: number | null): Range {
  if (!isNumber(min) || !isNumber(max)) return [0, 1];
  if (max - min >= 1) return [min, max];
  const middle = (min + max) / 2;
  return [Math.max(0, middle - 1), middle + 1];
}

/** A linear range around values, with some space that does not go beyond zero. */
export function linearRange(min: number | null, max: number | null): Range {
  if (!isNumber(min) || !isNumber(max)) return [0, 1];
  const [low, high] = [withinScale(min), withinScale(max)];
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (size === 0) return [-1, 1];
  if (!(high - low > FLAT * size)) return low > 0 ? [0, 2 * high] : [2 * low, 0];
  const space = (high - low) / 10;
  const unit = 10 ** (Math.floor(Math.log10(high - low)) - 1);
  // Round outwards, so that a new point rarely moves the axis.
  const [from, to] = unit > 0 ? [rounded(Math.floor((low - space) / unit), unit), rounded(Math.ceil((high + space) / unit), unit)] : [low, high];
  return [low >= 0 && from < 0 ? 0 : from, high <= 0 && to > 0 ? 0 : to];
}

/** A logarithmic range around positive values, whose limits have one digit. */
export function logRange(min: number | null, max: number | null): Range {
  if (!isNumber(min) || !isNumber(max) || !(min > 0) || !(max > 0)) return [1, 10];
  const [digit, exponent] = min.toExponential().split("e") as [string, string];
  const [last, magnitude] = max.toExponential().split("e") as [string, string];
  const low = Number(`${digit[0]}e${exponent}`);
  const high = Number(`${Math.ceil(Number(last))}e${magnitude}`);
  const [from, to] = low < high ? [low, high] : [low / 10, high * 10];
  return [Math.max(Number.MIN_VALUE, from), Math.min(Number.MAX_VALUE, to)];
}

/** Multiples of 1, 2 or 5 times a power of ten in a range, about `most` of them, and at least `least` apart. */
export function linearTicks([low, high]: Range, most: number, least = 0): number[] {
  const step = Math.max(least, niceStep((high - low) / most));
  const first = Math.ceil(low / step);
  const count = Math.floor(high / step) - first + 1;
  if (!(step > 0) || !(count > 0) || !Number.isSafeInteger(first)) return [];
  return Array.from({ length: Math.min(count, Math.ceil(most) + 1, MOST_TICKS) }, (_, k) => rounded(first + k, step)).filter(isTick(low, high));
}

/** Powers of ten in a positive range, with digits between them if they fit and fewer powers if they do not. */
export function logTicks([low, high]: Range, most: number): number[] {
  if (!(low > 0) || !(high > low) || !Number.isFinite(high) || !(most >= 1)) return [];
  const [first, last] = [low, high].map((limit) => Math.floor(Math.log10(limit))) as Range;
  const exponents = Array.from({ length: last - first + 2 }, (_, k) => first + k);
  const ticks = (digits: number[], every = 1) =>
    exponents
      .filter((exponent) => exponent % every === 0)
      .flatMap((exponent) => digits.map((digit) => Number(`${digit}e${exponent}`)))
      .filter(isTick(low, high));
  const all = ticks([1, 2, 3, 4, 5, 6, 7, 8, 9]);
  if (all.length < 3) return linearTicks([low, high], most);
  if (all.length <= most) return all;
  const some = ticks([1, 2, 5]);
  return some.length <= most ? some : ticks([1], Math.max(1, niceStep((last - first) / most)));
}

/** A tick's number in few characters; ticks are round, so they need few digits. */
export function tickText(tick: number): string {
  const value = Number(tick.toPrecision(12));
  const [plain, short] = [String(value), value.toExponential()].map((text) => text.replace("e+", "e")) as [string, string];
  return plain.length <= 7 || plain.length <= short.length ? plain : short;
}

/** The smallest 1, 2 or 5 times a power of ten that is at least `size`; 0 if `size` is not positive or no such number is finite. */
function niceStep(size: number): number {
  if (!(size > 0) || !Number.isFinite(size)) return 0;
  const exponent = Math.floor(Math.log10(size));
  const least = size * (1 - 1e-9);
  return [1, 2, 5, 10, 20].map((digit) => Number(`${digit}e${exponent}`)).find((step) => step >= least && Number.isFinite(step)) ?? 0;
}

/** A multiple of a step, without the error of the product: 3 × 0.1 is 0.3. */
const rounded = (k: number, step: number) => Number((k * step).toPrecision(15));

/** Whether a tick is in a range and larger than the one before it: the smallest numbers are multiples of 5e-324. */
const isTick = (low: number, high: number) => (tick: number, k: number, all: number[]) => tick >= low && tick <= high && !(k > 0 && tick <= all[k - 1]!);
