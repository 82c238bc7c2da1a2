import { describe, expect, it } from "vitest";
import type { Info } from "../src/transport/protocol";
import { boundsOf, cellsOfPreview, cellsOfValue, numbersOfValue, shortNumber, shortenMiddle, thinned, tints } from "../src/values/mini";

const info = (shape: number[], dtype = "float32"): Info => ({ text: "", kind: "tensor", dtype, shape });

describe("values drawn small", () => {
  it("reads the cells of a complete preview", () => {
    expect(cellsOfPreview("1, 2; 3, 4", info([2, 2]))?.numbers).toEqual([[1, 2], [3, 4]]);
    expect(cellsOfPreview("1, nan", info([2]))?.numbers).toEqual([[1, null]]);
    expect(cellsOfPreview("7", info([]))?.cells).toEqual([["7"]]);
  });
  it("does not draw a part of a value as if it were all", () => {
    expect(cellsOfPreview("1, 2; 3, 4 …", info([4, 2]))).toBeNull();
    expect(cellsOfPreview("1, 2", info([4]))).toBeNull();
    expect(cellsOfPreview("1, 2; 3, 4", info([1, 2, 2]))).toBeNull();
    expect(cellsOfPreview("a, b", info([2], "string"))).toBeNull();
  });
  it("shows fractions in fewer digits if a table would be too wide, and never cuts integers", () => {
    const wide = "0.123456, 0.234567, 0.345678, 0.456789; 1, 2, 3, 4.5";
    expect(cellsOfPreview(wide, info([2, 4]))?.cells).toEqual([["0.123", "0.235", "0.346", "0.457"], ["1", "2", "3", "4.5"]]);
    expect(cellsOfPreview(wide, info([2, 4]))?.numbers[0]![0]).toBe(0.123456);
    expect(cellsOfPreview("123456789012, 123456789012, 123456789012", info([3], "int64"))).toBeNull();
  });
  it("reads typed values, and not those that are on the server", () => {
    expect(cellsOfValue({ dtype: "float32", shape: [2, 2], data: [[1, 2], [3, -4]] })?.cells).toEqual([["1", "2"], ["3", "-4"]]);
    expect(cellsOfValue({ dtype: "float32", shape: [100, 2], file: "x.npy" })).toBeNull();
    expect(numbersOfValue({ dtype: "int64", shape: [3], data: ["9007199254740993", 2, 3] })).toEqual([[9007199254740992], [2], [3]]);
    expect(cellsOfValue(Array.from({ length: 40 }, (_, k) => k))).toBeNull();
  });
  it("tints by the greatest absolute value", () => {
    expect(tints([[0, 2], [-4, null]])).toEqual([[0, 0.5], [-1, 0]]);
    expect(tints([[0, 0]])).toEqual([[0, 0]]);
  });
  it("samples large matrices evenly and knows their bounds", () => {
    const large = Array.from({ length: 1000 }, (_, i) => Array.from({ length: 100 }, (_, j) => i - j));
    const few = thinned(large);
    expect(few.length).toBeLessThanOrEqual(48);
    expect(few[0]!.length).toBeLessThanOrEqual(48);
    expect(boundsOf(large)).toEqual([-99, 999]);
    expect(boundsOf([[null]])).toEqual([null, null]);
  });
  it("shortens numbers and names", () => {
    expect([0.333333333, 1234567, 12, -1e-9].map(shortNumber)).toEqual(["0.333", "1.23e+6", "12", "-1e-9"]);
    expect(shortenMiddle("short", 10)).toBe("short");
    const name = shortenMiddle("WeightedSparseSegmentSumWithNumSegments", 20);
    expect(name).toHaveLength(20);
    expect(name).toMatch(/^Weighted.*….*Segments$/);
  });
});
