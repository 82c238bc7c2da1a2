import { describe, expect, it } from "vitest";
import { beginningOf, panExtent } from "../src/canvas/view";

const canvas = { width: 1000, height: 500 };

describe("the beginning of a page", () => {
  it("has the upper left block in view, and what is beside it", () => {
    const page = { x: -200, y: -50, width: 4000, height: 2000 };
    expect(beginningOf(page, [[3000, 0], [0, 100], [0, 1500]], canvas, 0.5, 20)).toEqual({ x: 20 + 100, y: 20 + 25, zoom: 0.5 });
  });

  it("is the block where nothing else is near", () => {
    const page = { x: 0, y: -5000, width: 9000, height: 9000 };
    const { x, y, zoom } = beginningOf(page, [[2000, 0], [9000, -5000]], canvas, 0.6, 20);
    expect([2000 * zoom + x, 0 * zoom + y].map(Math.round)).toEqual([320, 170]); // where the block is in the window
  });

  it("of a page of notes is its corner", () => {
    expect(beginningOf({ x: 30, y: 60, width: 9000, height: 10 }, [], canvas, 1, 20)).toEqual({ x: -10, y: -40, zoom: 1 });
  });
});

describe("how far the page moves", () => {
  it("leaves an edge of it in view", () => {
    const [[left, top], [right, bottom]] = panExtent({ x: 0, y: 0, width: 300, height: 200 }, 1000, 500, 100);
    expect([left + 1000, top + 500]).toEqual([100, 100]); // the view's right and lower edge, moved to the utmost
    expect([right - 1000, bottom - 500]).toEqual([200, 100]);
  });
});
