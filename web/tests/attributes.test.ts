import { describe, expect, it } from "vitest";
import { attrText, readAttr } from "../src/blocks/attributes";

describe("attributes as text", () => {
  it("keep the kind of their default", () => {
    expect(readAttr("3", { float: 0 })).toEqual({ float: 3 });
    expect(readAttr("-0", { float: 0 })).toEqual({ float: "-0.0" });
    expect(readAttr("inf", { float: 0 })).toEqual({ float: "Infinity" });
    expect(readAttr("1e999", { float: 0 })).toBeUndefined();
    expect(readAttr("0x10", { float: 0 })).toBeUndefined();
    expect(readAttr("3", 0)).toBe(3);
    expect(readAttr("3.5", 0)).toBeUndefined();
    expect(readAttr("9007199254740993", 0)).toEqual({ int: "9007199254740993" });
    expect(readAttr("{2, -1}", null)).toEqual([2, -1]);
    expect(readAttr("[9007199254740993]", [])).toEqual([{ int: "9007199254740993" }]);
    expect(readAttr("", null)).toBeNull();
    expect(readAttr("", [])).toEqual([]);
    expect(readAttr("{}", null)).toEqual([]);
    expect(readAttr(" text ", "")).toBe(" text ");
  });

  it("parse back from their text", () => {
    for (const [value, like] of [[{ float: 1e22 }, { float: 0 }], [{ float: 0 }, { float: 0 }], [{ float: "NaN" }, { float: 0 }], [{ int: "9007199254740993" }, 1], [[1, 2], null]] as const) {
      expect(readAttr(attrText(value as never), like as never)).toEqual(value);
    }
    expect(attrText({ float: 0 })).toBe("0.0");
  });
});
