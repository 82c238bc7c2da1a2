// What the panels below work out for themselves: rows of traces, chart columns, colours, surfaces, long lists.

import { describe, expect, it } from "vitest";
import { columnsOf, readIndices, shortNumber, since } from "../src/trend/points";
import { NO_NUMBER, between, projectionFrom, scaleOf, surfaceOf } from "../src/heatmap/heat";
import { roundToBlocks, scrollToShow, visibleRange } from "../src/ui/virtualScroll";
import { byPin, countOf, firstRow, placeOf, rowsOf, rowsText } from "../src/trace/rows";
import { guess, pinsOf, upstream } from "../src/gradients/pins";
import type { Checked, Info, Page } from "../src/transport/protocol";

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
  it("are counted through the pins one after the other", () => {
    expect(placeOf(two, 2)).toMatchObject({ segment: { label: "a" }, row: 2 });
    expect(placeOf(two, 3)).toMatchObject({ segment: { label: "b" }, row: 0 });
    expect([firstRow(two, "a"), firstRow(two, "b"), firstRow(two, "c")]).toEqual([0, 3, null]);
    expect(byPin(two, [0, 3, 4])).toEqual({ a: [0], b: [0, 1] });
    expect(countOf(two, 1)).toBe(5);
  });
  it("are told by pin", () => {
    expect(rowsText(two, [0, 2, 3])).toBe("a rows 0, 2, b row 0");
    expect(rowsText([two[0]!], [0, 2, 5])).toBe("a rows 0, 2, 5");
    expect(rowsText([two[0]!], [0, 1, 2, 3], 2)).toBe("a rows 0, 1 and 2 more");
  });
  it("are told together where a size is not known", () => {
    const open = [{ ...two[0]!, size: null }, two[1]!];
    expect(placeOf(open, 7)).toBeNull();
    expect(rowsText(open, [7])).toBe("a, b row 7");
    expect(firstRow(open, "b")).toBeNull();
  });
});

describe("a chart", () => {
  it("has one row of runs for all series", () => {
    const lines = [
      { label: "x", points: [[1, 5], [3, 7]] as [number, number][] }, // prettier-ignore
      { label: "y", points: [[2, -1], [3, null]] as [number, number | null][] }, // prettier-ignore
    ];
    expect(columnsOf(lines, false)).toEqual([[1, 2, 3], [5, null, 7], [null, -1, null]]); // prettier-ignore
    expect(columnsOf(lines, true)[2]).toEqual([null, null, null]);
  });
  it("begins where its span does", () => {
    expect([since(250, 100), since(50, 100), since(50, null)]).toEqual([150, 0, 0]);
  });
  it("tells numbers shortly and reads indices", () => {
    expect([shortNumber(3), shortNumber(0.123456789), shortNumber(1.5e-9), shortNumber(null)]).toEqual(["3", "0.123457", "1.5000e-9", "no number"]);
    expect([readIndices(" 1, 2"), readIndices(""), readIndices("1.5"), readIndices("-1"), readIndices("x")]).toEqual([[1, 2], [], null, null, null]);
  });
});

describe("colours", () => {
  const light = ([r, g, b]: readonly number[]) => 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
  it("rise in lightness", () => {
    const scale = scaleOf(1, 9);
    const steps = Array.from({ length: 33 }, (_, k) => light(scale.colour(1 + k / 4)));
    expect(scale.diverging).toBe(false);
    expect(steps.every((step, k) => k === 0 || step >= steps[k - 1]!)).toBe(true);
  });
  it("have zero in the middle where it lies between the bounds", () => {
    const scale = scaleOf(-1, 4);
    expect([scale.diverging, scale.low, scale.high]).toEqual([true, -4, 4]);
    expect(light(scale.colour(0))).toBeGreaterThan(light(scale.colour(4)));
    expect(light(scale.colour(0))).toBeGreaterThan(light(scale.colour(-4)));
  });
  it("are defined for one number and for none", () => {
    expect(scaleOf(2, 2).colour(2)).toEqual(scaleOf(0, 2).colour(1));
    expect(scaleOf(null, null).colour(null)).toEqual(NO_NUMBER);
    expect(between([[0, 0, 0], [10, 20, 30]], 0.5)).toEqual([5, 10, 15]); // prettier-ignore
  });
});

describe("a surface", () => {
  const cells = [[0, 1, 2], [1, 2, 3], [2, 3, null]]; // prettier-ignore
  it("has a piece between every four numbers, and a hole where one is missing", () => {
    const quads = surfaceOf(cells, 0, 3, { turn: 0.5, tilt: 0.6 });
    expect(quads.length).toBe(3);
    expect(quads.every((quad) => quad.corners.flat().every((x) => Math.abs(x) <= 1))).toBe(true);
  });
  it("is drawn from the back: seen straight on, the first row comes before the last", () => {
    const quads = surfaceOf([[0, 0], [0, 0], [0, 0]], 0, 1, { turn: 0, tilt: 0.5 }); // prettier-ignore
    expect(quads.map((quad) => quad.row)).toEqual([0, 1]);
    const look = projectionFrom({ turn: 0, tilt: 0.5 });
    expect(look(0, 0.5, 0).at[1]).toBeGreaterThan(look(0, -0.5, 0).at[1]); // nearer is lower
    expect(look(0, 0, 0.5).at[1]).toBeLessThan(look(0, 0, -0.5).at[1]); // higher is higher
  });
});

describe("a long list", () => {
  it("shows what the scroll is at", () => {
    const seen = visibleRange(1000, 20, 2000, 100);
    expect([seen.length, seen.first, seen.beyond, seen.offset(100)]).toEqual([20000, 100, 106, 2000]);
  });
  it("reaches its end however long it is", () => {
    const count = 50_000_000;
    const { length } = visibleRange(count, 20, 0, 100);
    const end = visibleRange(count, 20, length - 100, 100);
    expect(end.beyond).toBe(count);
    expect(count - end.first).toBe(5);
    const wanted = scrollToShow(count, 20, 0, 100, count - 1)!;
    const there = visibleRange(count, 20, wanted, 100);
    expect(there.first + 5).toBeGreaterThanOrEqual(count);
  });
  it("scrolls only to what is not in view", () => {
    expect(scrollToShow(100, 20, 40, 100, 3)).toBeNull();
    expect(scrollToShow(100, 20, 40, 100, 0)).toBe(0);
    expect(scrollToShow(100, 20, 0, 100, 9)).toBe(100);
    expect(roundToBlocks(45, 60, 40, 90)).toEqual([40, 80]);
    expect(roundToBlocks(85, 90, 40, 90)).toEqual([80, 90]);
  });
});

describe("a flip to gradient", () => {
  const page: Page = {
    format: "rowgrad-page",
    version: 1,
    name: "p",
    blocks: [
      { id: "w", op: "A" },
      { id: "n", op: "A" },
      { id: "y", op: "B", in: { a: "w.out", b: "n.out" } },
      { id: "loss", op: "C", in: { x: "y.out" } },
    ],
  };
  const info = (dtype: string, ref = false): Info => ({ text: dtype, kind: "tensor", dtype, shape: [], ref });
  const known = (told: Info | Info[]) => ({ outputs: { out: told }, inputs: {} });
  const checked: Checked = {
    blocks: { w: known(info("float32", true)), n: known(info("int32")), y: known([info("float32"), info("float32")]), loss: known(info("float32")) },
    errors: {},
    waiting: [],
    sessions: [],
    recipes: {},
  };
  const pins = pinsOf(page, checked);
  it("offers every array, entry by entry", () => {
    expect(pins.map((pin) => pin.end)).toEqual(["w.out", "n.out", "y.out[0]", "y.out[1]", "loss.out"]);
    expect([...upstream(page, ["y"])].sort()).toEqual(["n", "w", "y"]);
  });
  it("guesses Variables before the selected block, or the selected blocks before it", () => {
    expect(guess(page, pins, new Set(["loss"]))).toEqual({ outputs: ["loss.out"], inputs: ["w.out"] });
    expect(guess(page, pins, new Set(["loss", "y"]))).toEqual({ outputs: ["loss.out"], inputs: ["y.out[0]"] });
    expect(guess(page, pins, new Set())).toEqual({ outputs: [], inputs: [] });
  });
});
