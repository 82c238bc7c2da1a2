import { describe, expect, it } from "vitest";
import { clearEntries, entriesOf, faultyEntry, listOf, partsOf, putEntries } from "../src/values/sparse";

const some = entriesOf([[2, 0, "c"], [0, 1, "a"], [0, 10, "b"]]);

describe("entries of a sparse matrix", () => {
  it("are listed in row-major order, without those outside", () => {
    expect(listOf(some, 3, 11)).toEqual([[0, 1, "a"], [0, 10, "b"], [2, 0, "c"]]);
    expect(listOf(some, 2, 5)).toEqual([[0, 1, "a"]]);
  });

  it("are added by typing and removed by clearing", () => {
    expect(listOf(putEntries(some, 0, 1, [["", "x"], ["y", " "]]), 9, 99)).toEqual([[0, 2, "x"], [0, 10, "b"], [1, 1, "y"], [2, 0, "c"]]);
    expect(listOf(clearEntries(some, { top: 0, left: 0, bottom: 1, right: 5 }), 9, 99)).toEqual([[0, 10, "b"], [2, 0, "c"]]);
  });

  it("need a record that outputs a sparse matrix", () => {
    const pin = (name: string, type = "T") => ({ name, type, host: false, many: false, ref: false, optional: false, role: "values", dtypes: [] });
    const record = (inputs: string[], type: string) => ({ inputs: inputs.map((name) => pin(name)), outputs: [pin("out", type)] }) as never;
    expect(partsOf(record(["indices", "values", "dense_shape"], "sparse"))?.values.name).toBe("values");
    expect(partsOf(record(["indices", "values", "dense_shape"], "T"))).toBeNull();
    expect(partsOf(record(["indices", "values"], "sparse"))).toBeNull();
    expect(faultyEntry("entries: 'x' at row 3, column 12 is no float32")).toEqual([3, 12]);
    expect(faultyEntry("no")).toBeNull();
  });
});
