import { describe, expect, it } from "vitest";
import type { Grid } from "../src/values/grid";
import { addLine, cellAt, clampIndices, faultyPlace, grown, matrixOf, put, readShape, removeLine, reshape, withShape } from "../src/values/grid";

const grid = (shape: number[], text: string): Grid => ({ shape, cells: text ? text.split(" ") : [] });

describe("a grid of texts", () => {
  it("shows the matrix of its last two axes", () => {
    expect(matrixOf([], [])).toEqual({ rows: 1, columns: 1, first: 0 });
    expect(matrixOf([4], [])).toEqual({ rows: 4, columns: 1, first: 0 });
    expect(matrixOf([2, 3], [])).toEqual({ rows: 2, columns: 3, first: 0 });
    expect(matrixOf([2, 5, 2, 3], [1, 4])).toEqual({ rows: 2, columns: 3, first: 54 });
    expect(cellAt(grid([2, 1, 2], "a b c d"), [1], 0, 1)).toBe("d");
  });

  it("keeps the position of cells when its shape changes", () => {
    expect(reshape(grid([2, 2], "a b c d"), [3, 3], "0").cells.join(" ")).toBe("a b 0 c d 0 0 0 0");
    expect(reshape(grid([2, 2], "a b c d"), [1, 1], "0").cells).toEqual(["a"]);
    expect(reshape(grid([3], "a b c"), [3, 2], "0").cells.join(" ")).toBe("a 0 b 0 c 0");
    expect(reshape(grid([], "a"), [2, 2], "0").cells.join(" ")).toBe("a 0 0 0");
    expect(reshape(grid([2, 2], "a b c d"), [2, 2, 2], "0").cells.join(" ")).toBe("a b c d 0 0 0 0");
    expect(reshape(grid([2, 2], "a b c d"), [2], "0").cells.join(" ")).toBe("a c");
    expect(reshape(grid([2], "a b"), [], "0").cells).toEqual(["a"]);
    expect(reshape(grid([2], "a b"), [0, 3], "0")).toEqual({ shape: [0, 3], cells: [] });
  });

  it("keeps the order of cells in a shape of the same size", () => {
    expect(withShape(grid([1, 3], "a b c"), [3], "0")).toEqual({ shape: [3], cells: ["a", "b", "c"] });
    expect(withShape(grid([2, 2], "a b c d"), [2, 1], "0").cells.join(" ")).toBe("a c");
  });

  it("grows when a table is pasted beyond its edge", () => {
    expect(grown([], 1, 1)).toEqual([]);
    expect(grown([], 2, 1)).toEqual([2]);
    expect(grown([3], 1, 2)).toEqual([3, 2]);
    expect(grown([2, 2, 2], 3, 1)).toEqual([2, 3, 2]);
    const made = put(grid([2, 2], "a b c d"), [], 1, 1, [["x", "y"], ["z", "w"]], "0");
    expect(made).toEqual({ shape: [3, 3], cells: "a b 0 c x y 0 z w".split(" ") });
    expect(put(grid([2, 1, 2], "a b c d"), [1], 0, 0, [["x"]], "0").cells.join(" ")).toBe("a b x d");
  });

  it("inserts and removes rows and columns", () => {
    expect(addLine(grid([2, 2], "a b c d"), "row", 1, "0").cells.join(" ")).toBe("a b 0 0 c d");
    expect(addLine(grid([2, 2], "a b c d"), "column", 0, "0").cells.join(" ")).toBe("0 a b 0 c d");
    expect(addLine(grid([2], "a b"), "row", 2, "0")).toEqual({ shape: [3], cells: ["a", "b", "0"] });
    expect(addLine(grid([2], "a b"), "column", 1, "0")).toEqual({ shape: [2, 2], cells: ["a", "0", "b", "0"] });
    expect(addLine(grid([0], ""), "row", 0, "0")).toEqual({ shape: [1], cells: ["0"] });
    expect(removeLine(grid([2, 2], "a b c d"), "row", 0)).toEqual({ shape: [1, 2], cells: ["c", "d"] });
    expect(removeLine(grid([2, 3], "a b c d e f"), "column", 1).cells.join(" ")).toBe("a c d f");
    expect(removeLine(grid([2, 2, 1], "a b c d"), "row", 0)).toEqual({ shape: [2, 1, 1], cells: ["b", "d"] });
    expect(removeLine(grid([1], "a"), "row", 0)).toEqual({ shape: [0], cells: [] });
    expect(removeLine(grid([2], "a b"), "column", 0).cells.join(" ")).toBe("a b");
  });

  it("parses shapes and positions", () => {
    expect(readShape("")).toEqual([]);
    expect(readShape("[2, 3]")).toEqual([2, 3]);
    expect(readShape("2x3x4")).toEqual([2, 3, 4]);
    expect(readShape("2,-1")).toBeNull();
    expect(readShape("two")).toBeNull();
    expect(clampIndices([2, 3, 4, 4], [9, 1])).toEqual([1, 1]);
    expect(faultyPlace("cells: 'x' in cell [1, 2] is no float32")).toEqual([1, 2]);
    expect(faultyPlace("cells: there is nothing in cell []")).toEqual([]);
    expect(faultyPlace("dtype: no")).toBeNull();
  });
});
