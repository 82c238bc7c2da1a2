import { describe, expect, it } from "vitest";
import { columnsOf, readIndices, shortNumber, since } from "../src/trend/points";
import { linearRange, linearTicks, logRange, logTicks, runRange, tickText } from "../src/trend/scale";

describe("a chart", () => {
  it("has one list of runs for all series", () => {
    const lines = [
      { label: "x", points: [[1, 5], [3, 7]] as [number, number][] }, // prettier-ignore
      { label: "y", points: [[2, -1], [3, null]] as [number, number | null][] }, // prettier-ignore
    ];
    expect(columnsOf(lines, false)).toEqual([[1, 2, 3], [5, null, 7], [null, -1, null]]); // prettier-ignore
    expect(columnsOf(lines, true)[2]).toEqual([null, null, null]);
    expect(columnsOf([{ label: "z", points: [[1, NaN], [2, Infinity], [3, 1]] }], false)[1]).toEqual([null, null, 1]); // prettier-ignore
  });
  it("starts at its span", () => {
    expect([since(250, 100), since(50, 100), since(50, null)]).toEqual([150, 0, 0]);
  });
  it("shortens numbers and parses indices", () => {
    expect([shortNumber(3), shortNumber(0.123456789), shortNumber(1.5e-9), shortNumber(null)]).toEqual(["3", "0.123457", "1.5000e-9", "no number"]);
    expect([readIndices(" 1, 2"), readIndices(""), readIndices("1.5"), readIndices("-1"), readIndices("x")]).toEqual([[1, 2], [], null, null, null]);
  });
});

describe("an axis", () => {
  it("has round limits around its values, and zero instead of limits beyond it", () => {
    expect([linearRange(0.5, 9), linearRange(-4, -1), linearRange(-3, 12)]).toEqual([[0, 9.9], [-4.3, -0.6], [-5, 14]]); // prettier-ignore
    expect([linearRange(5, 5), linearRange(-5, -5), linearRange(0, 0), linearRange(1, 1 + 1e-15)]).toEqual([[0, 10], [-10, 0], [-1, 1], [0, 2 + 2e-15]]); // prettier-ignore
    expect([logRange(0.031, 27), logRange(1, 10), logRange(5, 5), logRange(6e-26, 9e-25)]).toEqual([[0.03, 30], [1, 10], [0.5, 50], [6e-26, 9e-25]]); // prettier-ignore
    expect([runRange(7, 7), runRange(0, 0), runRange(2, 9)]).toEqual([[6, 8], [0, 1], [2, 9]]); // prettier-ignore
    expect([linearRange(null, null), logRange(null, null), runRange(null, null)]).toEqual([[0, 1], [1, 10], [0, 1]]); // prettier-ignore
  });
  it("has round ticks as far as there is space", () => {
    expect(linearTicks([0, 1], 5)).toEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
    expect(linearTicks([1, 4], 10, 1)).toEqual([1, 2, 3, 4]);
    expect(linearTicks([-3e35, 2.5e38], 3)).toEqual([0, 1e38, 2e38]);
    expect(logTicks([0.5, 3], 9)).toEqual([0.5, 0.6, 0.7, 0.8, 0.9, 1, 2, 3]);
    expect(logTicks([0.5, 300], 9)).toEqual([0.5, 1, 2, 5, 10, 20, 50, 100, 200]);
    expect(logTicks([2e-27, 0.5], 6)).toEqual([1e-25, 1e-20, 1e-15, 1e-10, 1e-5]);
    expect(logTicks([0.31, 0.34], 4)).toEqual([0.31, 0.32, 0.33, 0.34]);
    expect([0, 0.30000000000000004, 1500, 1_000_000, 2.5e-9, -1e38].map(tickText)).toEqual(["0", "0.3", "1500", "1000000", "2.5e-9", "-1e38"]);
  });
  it("has finite limits and ascending ticks for all values", () => {
    const { MAX_VALUE, MIN_VALUE, EPSILON, MAX_SAFE_INTEGER } = Number;
    const sizes = [MIN_VALUE, 1e-320, 2.2e-308, 1e-100, 5e-26, 1e-25, 9.999e-25, 1e-16, 0.1, 1 - EPSILON, 1, 1 + EPSILON, 10, 1e17, 1e17 + 16, MAX_SAFE_INTEGER, 1e33, 3.4e38, 1e300, MAX_VALUE / 2, MAX_VALUE];
    const values = [0, NaN, Infinity, -Infinity, ...sizes, ...sizes.map((size) => -size)];
    const check = ([low, high]: [number, number], ticks: number[], most: number) => {
      const found = JSON.stringify([low, high, most, ticks]);
      expect(low < high && Number.isFinite(high - low), found).toBe(true);
      expect(ticks.length <= Math.max(1, Math.ceil(most) + 1), found).toBe(true);
      expect(ticks.every((tick, k) => tick >= low && tick <= high && !(k > 0 && tick <= ticks[k - 1]!)), found).toBe(true);
    };
    for (const min of values) {
      for (const max of values.filter((value) => !(value < min))) {
        for (const most of [0.3, 1, 4, 30]) {
          const [linear, log, runs] = [linearRange(min, max), logRange(min, max), runRange(min, max)];
          check(linear, linearTicks(linear, most), most);
          check(log, logTicks(log, most), most);
          if (min >= 0 && max <= MAX_SAFE_INTEGER) check(runs, linearTicks(runs, most, 1), most);
        }
      }
    }
  });
  it("has no ticks without a range or space", () => {
    for (const limits of [[1, 1], [2, 1], [NaN, 1], [0, Infinity], [-Infinity, Infinity]] as [number, number][]) expect([linearTicks(limits, 5), logTicks(limits, 5)]).toEqual([[], []]); // prettier-ignore
    for (const most of [0, -3, NaN]) expect([linearTicks([0, 9], most), logTicks([1, 9], most)]).toEqual([[], []]);
    expect(linearTicks([0, 1e12], Infinity, 1).length).toBeLessThan(1000);
  });
});
