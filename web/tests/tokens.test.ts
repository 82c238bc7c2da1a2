// The design tokens: every text is readable on every ground it is drawn on, in both themes (WCAG AA).

import { describe, expect, it } from "vitest";
import css from "../src/styles/theme.css?raw";

const tokens = new Map<string, [string, string]>();
for (const [, name, light, dark] of css.matchAll(/--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);/g)) tokens.set(name!, [light!, dark!]);
for (const [, name, both] of css.matchAll(/--([\w-]+): (#\w{6});/g)) tokens.set(name!, [both!, both!]);

function luminance(colour: string): number {
  const [red, green, blue] = [1, 3, 5].map((k) => {
    const part = Number.parseInt(colour.slice(k, k + 2), 16) / 255;
    return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!;
}

function contrast(one: string, other: string): number {
  const [a, b] = [luminance(one), luminance(other)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

function check(texts: string[], grounds: string[], least: number): string[] {
  const found: string[] = [];
  for (const text of texts)
    for (const ground of grounds)
      for (const theme of [0, 1] as const) {
        const ratio = contrast(tokens.get(text)![theme], tokens.get(ground)![theme]);
        if (ratio < least) found.push(`${text} on ${ground}, ${["light", "dark"][theme]}: ${ratio.toFixed(2)}`);
      }
  return found;
}

const names = (prefix: string) => [...tokens.keys()].filter((name) => name.startsWith(prefix));

describe("contrast of the design tokens", () => {
  it("text on grounds", () => {
    const grounds = ["ground", "paper", "raised", "sunken", "canvas", "block", "block-field"];
    expect(check(["text", "quiet", "accent", "error", "warning", "good", "block-text", "block-quiet", "block-error", "wire-text"], grounds, 4.5)).toEqual([]);
  });
  it("text on colours that mean something", () => {
    expect(check(["text", "quiet"], ["accent-soft", "warning-soft", "note"], 4.5)).toEqual([]);
    expect(check(["error"], ["error-soft"], 4.5)).toEqual([]);
    expect(check(["warning"], ["warning-soft"], 4.5)).toEqual([]);
    expect(check(["accent-text"], ["accent"], 4.5)).toEqual([]);
  });
  it("names of ops on the headers of all families", () => {
    expect(names("family-").length).toBeGreaterThan(10);
    expect(check(["on-family"], names("family-"), 4.5)).toEqual([]);
  });
  it("wires and pins on the canvas and on blocks, as graphics", () => {
    expect(names("carry-").length).toBe(8);
    expect(check(names("carry-"), ["canvas", "block"], 3)).toEqual([]);
  });
  it("no two things that a wire carries look the same", () => {
    for (const theme of [0, 1] as const) expect(new Set(names("carry-").map((name) => tokens.get(name)![theme])).size).toBe(8);
  });
});
