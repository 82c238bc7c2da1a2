import { describe, expect, it } from "vitest";
import { scopeToStudio, scopedSelector } from "../scope";

describe("selectors of the style sheet", () => {
  it("apply inside of Studio only, with one more id of specificity", () => {
    expect(scopedSelector(".quiet")).toBe(".quiet:where(.studio, .studio *):not(#\\9)");
    expect(scopedSelector(".a > b.c")).toBe(".a > b.c:where(.studio, .studio *):not(#\\9)");
    expect(scopedSelector(scopedSelector(".a"))).toBe(scopedSelector(".a"));
  });
  it("keep pseudo-elements last", () => {
    expect(scopedSelector(".a:hover::before")).toBe(".a:hover:where(.studio, .studio *):not(#\\9)::before");
    expect(scopedSelector("::placeholder")).toBe("*:where(.studio, .studio *):not(#\\9)::placeholder");
    expect(scopedSelector(".a::-webkit-scrollbar:horizontal")).toBe(".a:where(.studio, .studio *):not(#\\9)::-webkit-scrollbar:horizontal");
  });
  it("are restricted by the rule around them, also in its @media", () => {
    const outer = { type: "rule", selectors: [".a"] };
    const inner = { type: "rule", selectors: [".b"], parent: { type: "atrule", name: "media", parent: outer } };
    const media = { type: "rule", selectors: [".c"], parent: { type: "atrule", name: "media", parent: { type: "root" } } };
    for (const rule of [outer, inner, media]) scopeToStudio().Rule(rule);
    expect([outer, inner, media].map((rule) => rule.selectors[0]!.includes("where"))).toEqual([true, false, true]);
  });
  it("leave the page around Studio alone", () => {
    expect(scopedSelector("body:has(> #studio)")).toBe("body:has(> #studio)");
  });
});
