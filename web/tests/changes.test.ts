import { describe, expect, it } from "vitest";
import { cellText, gridOf, rangeOfCell, strengthOf } from "../src/trace/changes";

const picture = {
  rows: 5,
  steps: 4,
  first: 11,
  last: 14,
  down: 5,
  across: 4,
  cells: [[0, 0, 1, 0.5], [0, 3, 1, 2], [3, 1, 1, null]] as [number, number, number, number | null][],
  most: 2,
  changed: 2,
  hot: [],
};

describe("rows over time", () => {
  it("reads a cell as a row and a step", () => {
    expect(cellText(picture, 0, 3)).toBe("row 0, step 14: moved 2");
    expect(cellText(picture, 1, 0)).toBe("row 1, step 11: unchanged");
    expect(cellText(picture, 3, 1)).toBe("row 3, step 12: moved to no number");
  });
  it("reads cells of several rows and steps", () => {
    const coarse = { ...picture, rows: 1000, first: 1, last: 100, down: 10, across: 10, cells: [[1, 9, 30, 4]] as [number, number, number, number | null][] };
    expect(cellText(coarse, 1, 9)).toBe("rows 100 to 199, steps 91 to 100: 30 changes, moved 4");
  });
  it("gives every number of an axis one cell", () => {
    for (const [size, cells] of [[7, 3], [320, 320], [1001, 320]] as const) {
      const all = Array.from({ length: cells }, (_, cell) => rangeOfCell(size, cells, cell));
      expect(all[0]![0]).toBe(0);
      expect(all.at(-1)![1]).toBe(size - 1);
      all.slice(1).forEach(([first], k) => expect(first).toBe(all[k]![1] + 1));
    }
  });
  it("draws longer ways stronger, and shades rows that never changed", () => {
    expect(strengthOf(0, 2)).toBeGreaterThan(0);
    expect(strengthOf(0.5, 2)).toBeLessThan(strengthOf(1, 2));
    expect(strengthOf(2, 2)).toBeCloseTo(1);
    expect(strengthOf(0, 0)).toBe(strengthOf(0, 2));
    expect(strengthOf(null, 2)).toBe(1);
    expect([...gridOf(picture).shaded!]).toEqual([1, 2, 4]);
  });
});
