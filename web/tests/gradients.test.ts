import { describe, expect, it } from "vitest";
import { guess, pinsOf, upstream } from "../src/gradients/pins";
import type { Checked, Info, Page } from "../src/transport/protocol";

describe("the gradient dialog", () => {
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
  const known = (out: Info | Info[]) => ({ outputs: { out }, inputs: {} });
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
  it("preselects Variables that the selected block depends on, or other selected blocks", () => {
    expect(guess(page, pins, new Set(["loss"]))).toEqual({ outputs: ["loss.out"], inputs: ["w.out"] });
    expect(guess(page, pins, new Set(["loss", "y"]))).toEqual({ outputs: ["loss.out"], inputs: ["y.out[0]"] });
    expect(guess(page, pins, new Set())).toEqual({ outputs: [], inputs: [] });
  });
});
