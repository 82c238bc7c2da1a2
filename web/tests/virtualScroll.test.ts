import { describe, expect, it } from "vitest";
import { roundToBlocks, scrollToShow, visibleRange } from "../src/ui/virtualScroll";

describe("a long list", () => {
  it("shows the items at the scroll position", () => {
    const range = visibleRange(1000, 20, 2000, 100);
    expect([range.length, range.first, range.beyond, range.offset(100)]).toEqual([20000, 100, 106, 2000]);
  });
  it("reaches the end of a list of any length", () => {
    const count = 50_000_000;
    const { length } = visibleRange(count, 20, 0, 100);
    const end = visibleRange(count, 20, length - 100, 100);
    expect(end.beyond).toBe(count);
    expect(count - end.first).toBe(5);
    const wanted = scrollToShow(count, 20, 0, 100, count - 1)!;
    const there = visibleRange(count, 20, wanted, 100);
    expect(there.first + 5).toBeGreaterThanOrEqual(count);
  });
  it("scrolls only to invisible items", () => {
    expect(scrollToShow(100, 20, 40, 100, 3)).toBeNull();
    expect(scrollToShow(100, 20, 40, 100, 0)).toBe(0);
    expect(scrollToShow(100, 20, 0, 100, 9)).toBe(100);
    expect(roundToBlocks(45, 60, 40, 90)).toEqual([40, 80]);
    expect(roundToBlocks(85, 90, 40, 90)).toEqual([80, 90]);
  });
});
