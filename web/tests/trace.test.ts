import { describe, expect, it } from "vitest";
import { busiestRow, byPin, countOf, firstRow, placeOf, rowsOf, rowsText } from "../src/trace/rows";

describe("rows of a trace", () => {
  const two = [
    { pin: "a", label: "a", size: 3 },
    { pin: "b", label: "b", size: 2 },
  ];
  it("are found from both sides, each once", () => {
    const rows = rowsOf({ pairs: [[0, 1], [0, 2], [0, 1], [3, 1]] }); // prettier-ignore
    expect(rows.sources.get(0)).toEqual([1, 2]);
    expect(rows.targets.get(1)).toEqual([0, 3]);
    expect([rows.lastOutput, rows.lastInput]).toEqual([3, 2]);
  });
  it("are numbered through the pins in order", () => {
    expect(placeOf(two, 2)).toMatchObject({ segment: { label: "a" }, row: 2 });
    expect(placeOf(two, 3)).toMatchObject({ segment: { label: "b" }, row: 0 });
    expect([firstRow(two, "a"), firstRow(two, "b"), firstRow(two, "c")]).toEqual([0, 3, null]);
    expect(byPin(two, [0, 3, 4])).toEqual({ a: [0], b: [0, 1] });
    expect(countOf(two, 1)).toBe(5);
  });
  it("are explained beginning with a row of several, but not too many, sources", () => {
    expect(busiestRow({ pairs: [] })).toBeNull();
    expect(busiestRow({ pairs: [[0, 0], [2, 0], [2, 1], [3, 1]] })).toBe(2); // prettier-ignore
    const hot = Array.from({ length: 50 }, (_, k): [number, number] => [9, k]);
    expect(busiestRow({ pairs: [...hot, [1, 0], [1, 1], [4, 0]] })).toBe(1);
  });
  it("are formatted by pin", () => {
    expect(rowsText(two, [0, 2, 3])).toBe("a rows 0, 2, b row 0");
    expect(rowsText([two[0]!], [0, 2, 5])).toBe("a rows 0, 2, 5");
    expect(rowsText([two[0]!], [0, 1, 2, 3], 2)).toBe("a rows 0, 1 and 2 more");
  });
  it("are formatted together if a size is unknown", () => {
    const open = [{ ...two[0]!, size: null }, two[1]!];
    expect(placeOf(open, 7)).toBeNull();
    expect(rowsText(open, [7])).toBe("a, b row 7");
    expect(firstRow(open, "b")).toBeNull();
  });
});
