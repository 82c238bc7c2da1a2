import { describe, expect, it } from "vitest";
import { NO_NUMBER, between, scaleOf } from "../src/heatmap/colours";
import { axisNumbers } from "../src/ui/axis";
import { projectionFrom, surfaceOf } from "../src/heatmap/surface";

describe("numbers along an axis", () => {
  it("are far enough apart, and missing in a panel without space", () => {
    expect([axisNumbers(3, 40, 34), axisNumbers(12, 10, 34), axisNumbers(100, 1, 34)]).toEqual([[0, 1, 2], [0, 5, 10], [0, 50]]); // prettier-ignore
    for (const size of [0, -3, NaN, 1e-320]) expect(axisNumbers(9, size, 34)).toEqual([]);
  });
});

describe("colours", () => {
  const light = ([r, g, b]: readonly number[]) => 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
  it("increase in lightness", () => {
    const scale = scaleOf(1, 9);
    const steps = Array.from({ length: 33 }, (_, k) => light(scale.colour(1 + k / 4)));
    expect(scale.diverging).toBe(false);
    expect(steps.every((step, k) => k === 0 || step >= steps[k - 1]!)).toBe(true);
  });
  it("have zero in the middle if it is between the bounds", () => {
    const scale = scaleOf(-1, 4);
    expect([scale.diverging, scale.low, scale.high]).toEqual([true, -4, 4]);
    expect(light(scale.colour(0))).toBeGreaterThan(light(scale.colour(4)));
    expect(light(scale.colour(0))).toBeGreaterThan(light(scale.colour(-4)));
  });
  it("are defined for one number and for none at all", () => {
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
  it("is drawn from back to front", () => {
    const quads = surfaceOf([[0, 0], [0, 0], [0, 0]], 0, 1, { turn: 0, tilt: 0.5 }); // prettier-ignore
    expect(quads.map((quad) => quad.row)).toEqual([0, 1]);
    const project = projectionFrom({ turn: 0, tilt: 0.5 });
    expect(project(0, 0.5, 0).at[1]).toBeGreaterThan(project(0, -0.5, 0).at[1]); // nearer is lower
    expect(project(0, 0, 0.5).at[1]).toBeLessThan(project(0, 0, -0.5).at[1]); // higher is higher
  });
});
