import { describe, expect, it } from "vitest";
import { columnsOf, readIndices, shortNumber, since } from "../src/trend/points";

describe("a chart", () => {
  it("has one list of runs for all series", () => {
    const lines = [
      { label: "x", points: [[1, 5], [3, 7]] as [number, number][] }, // prettier-ignore
      { label: "y", points: [[2, -1], [3, null]] as [number, number | null][] }, // prettier-ignore
    ];
    expect(columnsOf(lines, false)).toEqual([[1, 2, 3], [5, null, 7], [null, -1, null]]); // prettier-ignore
    expect(columnsOf(lines, true)[2]).toEqual([null, null, null]);
  });
  it("starts at its span", () => {
    expect([since(250, 100), since(50, 100), since(50, null)]).toEqual([150, 0, 0]);
  });
  it("shortens numbers and parses indices", () => {
    expect([shortNumber(3), shortNumber(0.123456789), shortNumber(1.5e-9), shortNumber(null)]).toEqual(["3", "0.123457", "1.5000e-9", "no number"]);
    expect([readIndices(" 1, 2"), readIndices(""), readIndices("1.5"), readIndices("-1"), readIndices("x")]).toEqual([[1, 2], [], null, null, null]);
  });
});
