import { describe, expect, it } from "vitest";
import { START, cursorAt, formatTable, isInside, moveCursor, nextCell, parseTable, rangeOf } from "../src/values/spreadsheet";

describe("keys of a spreadsheet", () => {
  it("move the cursor and stop at the edges", () => {
    const go = (key: string, far = false) => moveCursor(cursorAt(1, 1, 3, 4), key, far, false, 3, 4, 10)!;
    expect([go("ArrowDown").row, go("ArrowUp").row, go("ArrowRight").column, go("ArrowLeft").column]).toEqual([2, 0, 2, 0]);
    expect([go("ArrowDown", true).row, go("End").column, go("PageDown").row, go("PageUp").row]).toEqual([2, 3, 2, 0]);
    expect(go("Home", true)).toEqual(START);
    expect(moveCursor(START, "ArrowUp", false, false, 3, 4, 10)).toEqual(START);
    expect(moveCursor(START, "x", false, false, 3, 4, 10)).toBeNull();
  });

  it("with Shift extend a range", () => {
    let cursor = cursorAt(2, 2, 5, 5);
    cursor = moveCursor(cursor, "ArrowUp", false, true, 5, 5, 10)!;
    cursor = moveCursor(cursor, "ArrowRight", false, true, 5, 5, 10)!;
    expect(rangeOf(cursor)).toEqual({ top: 1, left: 2, bottom: 2, right: 3 });
    expect(isInside(rangeOf(cursor), 2, 3)).toBe(true);
    expect(isInside(rangeOf(cursor), 0, 3)).toBe(false);
    expect(rangeOf(moveCursor(cursor, "ArrowLeft", false, false, 5, 5, 10)!)).toEqual({ top: 1, left: 2, bottom: 1, right: 2 });
  });

  it("with Tab visit all cells and then leave", () => {
    expect(nextCell(cursorAt(0, 1, 2, 2), false, 2, 2)).toMatchObject({ row: 1, column: 0 });
    expect(nextCell(cursorAt(1, 0, 2, 2), true, 2, 2)).toMatchObject({ row: 0, column: 1 });
    expect(nextCell(cursorAt(1, 1, 2, 2), false, 2, 2)).toBeNull();
    expect(nextCell(START, true, 2, 2)).toBeNull();
  });
});

describe("tables in the clipboard", () => {
  it("parse as spreadsheets write them", () => {
    expect(parseTable("1\t2\r\n3\t4\r\n")).toEqual([["1", "2"], ["3", "4"]]);
    expect(parseTable("1\n2\n3")).toEqual([["1"], ["2"], ["3"]]);
    expect(parseTable("1\t\n\t4")).toEqual([["1", ""], ["", "4"]]);
    expect(parseTable("1\n2\t3")).toEqual([["1", ""], ["2", "3"]]);
    expect(parseTable('"a\tb"\t"say ""x"""')).toEqual([["a\tb", 'say "x"']]);
    expect(parseTable('"line\nbreak"\tc')).toEqual([["line\nbreak", "c"]]);
    expect(parseTable('"a"\t"b')).toEqual([['"a"', '"b']]);
    expect(parseTable("9007199254740993")).toEqual([["9007199254740993"]]);
    expect(parseTable("")).toEqual([[""]]);
  });

  it("round-trip", () => {
    const cells = [["1", "a b", ""], ['"q"', "x\ny", "t\tt"]];
    expect(parseTable(formatTable(cells))).toEqual(cells);
  });
});
