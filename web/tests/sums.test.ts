import { describe, expect, it } from "vitest";
import { differenceOf, placeText } from "../src/trace/bits";
import { progressAfter, runsOf, slotsOf, treeOf } from "../src/trace/scatter";
import { binText, cellOfRow, cellText, rowsOfCell, strength } from "../src/trace/spy";
import { equationText, fractionText, idText, numberText, reasonText, ribbonWidth, ribbonsOf, rowText } from "../src/trace/sums";
import type { OpRecord, RowSum, Scatter, Spy, SumTerm } from "../src/transport/protocol";

const scale = (text: string, divides = false) => ({ text, divides, by: text });
const term = (row: number, values: string[], more: Partial<SumTerm> = {}): SumTerm => ({ term: row, pin: "grad", row, place: row, column: null, factor: "1", weight: 1, id: null, reason: "", scales: [], values, product: values, ...more });
const sum = (terms: SumTerm[], result: string[], more: Partial<RowSum> = {}): RowSum => ({
  op: "Op", pin: "output", row: 2, rows: 4, dtype: "float32", sum_dtype: "float32", order: null, orders: [], origins: {}, kind: "sum", columns: [0, result.length],
  of_columns: result.length, total_terms: terms.length, terms, parts: [], then: [], result, sum: result, differing: 0, ...more,
}); // prettier-ignore

describe("the sum of a row", () => {
  const half = term(0, ["1.0", "2.0"], { factor: "1/2", weight: 0.5, scales: [scale("1/2")] });
  const whole = term(1, ["6.0", "8.0"], { scales: [scale("1")] });
  it("is written with fractions", () => {
    expect(equationText(sum([half, whole], ["6.5", "9.0"]))).toBe("½·[1, 2] + 1·[6, 8] = [6.5, 9]");
    expect(fractionText("1/√3")).toBe("1/√3");
    expect(fractionText("-1/4")).toBe("−¼");
  });
  it("is scaled as a whole where the op does that", () => {
    const rows = [term(0, ["1.0"]), term(1, ["2.0"])];
    expect(equationText(sum(rows, ["1.5"], { then: [scale("1/2")] }))).toBe("(1 + 2)·½ = 1.5");
    expect(equationText(sum(rows, ["1.5"], { then: [scale("12", true)] }))).toBe("(1 + 2) ÷ 12 = 1.5");
  });
  it("shows the factor of a division and a multiplication as one", () => {
    expect(equationText(sum([term(0, ["8.0"], { factor: "3/8", scales: [scale("8", true), scale("3")] })], ["3.0"]))).toBe("⅜·8 = 3");
  });
  it("is cut if it has many terms or columns", () => {
    const many = Array.from({ length: 9 }, (_, k) => term(k, ["1.0", "2.0", "3.0", "4.0", "5.0"]));
    expect(equationText(sum(many, ["9.0", "18.0", "27.0", "36.0", "45.0"], { total_terms: 6500 }), 3)).toBe("[1, 2, 3, 4, …] + [1, 2, 3, 4, …] + … 6,498 more … = [9, 18, 27, 36, …]");
  });
  it("says if there is nothing to add", () => {
    expect(equationText(sum([], ["0.0", "0.0"], { kind: "zero" }))).toBe("no row: [0, 0]");
  });
  it("has ribbons as thick as the factors, one for each source row", () => {
    expect(ribbonsOf(sum([half, whole, half], [])).map(({ row, label, weight }) => [row, label, weight])).toEqual([[0, "2 × ½", 1], [1, "1", 1]]);
    expect([ribbonWidth(1, 1, 14), ribbonWidth(-0.5, 1, 14), ribbonWidth(0, 1), ribbonWidth(null, 1)]).toEqual([14, 8, 2, 2]);
  });
  it("says why a factor is what it is, and names ids by their position", () => {
    const because = { ...half, reason: "bag 0 has 2 ids" };
    expect([reasonText(because), reasonText(whole)]).toEqual(["½ because bag 0 has 2 ids", "added as it is"]);
    expect(ribbonsOf(sum([because, because, { ...half, reason: "bag 1 has 2 ids" }], []))[0]!.reason).toBe("½ because bag 0 has 2 ids; ½ because bag 1 has 2 ids");
    const op = { inputs: [{ name: "indices" }] } as OpRecord;
    expect([idText(op, 1, 2), idText(undefined, 1, 2), idText(op, 3, null)]).toEqual(["indices[1] = 2", "ids[1] = 2", "3"]);
  });
  it("shortens numbers but no integers", () => {
    expect(["0.333333343267", "-1.0", "9007199254740993", "nan", "1e-40"].map((one) => numberText(one))).toEqual(["0.333333", "−1", "9007199254740993", "nan", "1e−40"]);
    expect(rowText(["2.0"], 1)).toBe("2");
  });
});

describe("the scatter view", () => {
  const step = (place: number, to: number, total: string, path: number[] = []) => ({ place, to, pin: "grad", from: 0, factor: "1", weight: 1, id: null, reason: "", product: ["1.0"], total: [total], path });
  const scatter: Scatter = {
    op: "Op", pin: "output", sources: [{ pin: "grad", rows: 1 }], rows: 4, columns: 1, of_columns: 1, named: 2, total: 3, order: null, orders: [],
    ends: [{ row: 0, terms: 1, sum: ["1.0"] }, { row: 2, terms: 2, sum: ["9.0"] }],
    steps: [step(0, 2, "1.0", [0]), step(1, 0, "1.0"), step(2, 2, "2.0", [1])],
  }; // prettier-ignore
  it("knows what has been added after some ids, and the result after the last", () => {
    expect([...progressAfter(scatter, 2)]).toEqual([[2, { done: 1, of: 2, total: ["1.0"] }], [0, { done: 1, of: 1, total: ["1.0"] }]]);
    expect(progressAfter(scatter, 3).get(2)).toEqual({ done: 2, of: 2, total: ["9.0"] });
  });
  it("groups the ids of a row by run, as a tree", () => {
    const runs = runsOf(scatter, 2, 2);
    expect(runs).toEqual([{ path: [0], size: 1, done: 1, total: ["1.0"] }, { path: [1], size: 1, done: 0, total: null }]);
    expect(treeOf(runs).children.map((child) => child.run?.done)).toEqual([1, 0]);
    expect(treeOf([{ path: [1, 0], size: 4, done: 0, total: null }]).children[0]!.children[0]!.run!.size).toBe(4);
  });
  it("draws neighbouring rows that are never named as one", () => {
    expect(slotsOf("t", 3, [1]).map((slot) => slot.named)).toEqual([false, true, false]);
    expect(slotsOf("t", 1000, [7, 8]).map(({ first, last, named }) => [first, last, named])).toEqual([[0, 6, false], [7, 7, true], [8, 8, true], [9, 999, false]]);
  });
});

describe("the spy plot", () => {
  const axis = { pins: ["t"], rows: 10, cells: 4, named: 3, degrees: [1], hot: [] };
  it("maps rows to cells and back", () => {
    for (let cell = 0; cell < 4; cell++) {
      const [first, last] = rowsOfCell(axis, cell);
      for (let row = first; row <= last; row++) expect(cellOfRow(axis, row)).toBe(cell);
    }
    expect(rowsOfCell(axis, 3)).toEqual([8, 9]);
    const spy: Spy = { op: "Op", total: 5, table: "outputs", across: axis, down: { ...axis, pins: ["g"], rows: 4 }, cells: [[1, 0, 5]], most: 5 };
    expect(cellText(spy, 1, 0)).toBe("g row 1, t rows 0 to 2: 5 ids");
  });
  it("draws single ids visibly beside hot rows", () => {
    expect(strength(0, 9)).toBe(0);
    expect(strength(1, 1000)).toBeGreaterThan(0.3);
    expect(strength(1000, 1000)).toBe(1);
    expect([0, 1, 2, 11].map(binText)).toEqual(["1", "2", "3–4", "1,025–2,048"]);
  });
});

describe("two results side by side", () => {
  it("differ from the first digit that is not the same", () => {
    expect(differenceOf("2.2108505", "2.2108524")).toEqual({ same: "2.21085", a: "05", b: "24" });
    expect(differenceOf("1.0", "1.0")).toEqual({ same: "1.0", a: "", b: "" });
    expect([placeText([0, 2]), placeText([])]).toEqual(["[0, 2]", "the number"]);
  });
});
