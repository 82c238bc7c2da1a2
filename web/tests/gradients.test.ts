import { describe, expect, it } from "vitest";
import { guess, outputPins, typedPins, upstream } from "../src/gradients/pins";
import type { Checked, Info, OpRecord, Page } from "../src/transport/protocol";

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
  const pins = outputPins(page, checked);
  const guessed = (...ids: string[]) => guess(page, pins, [], new Set(ids));
  it("offers outputs of floats only, entry by entry", () => {
    expect(pins.map((pin) => pin.end)).toEqual(["w.out", "y.out[0]", "y.out[1]", "loss.out"]);
    expect([...upstream(page, ["y"])].sort()).toEqual(["n", "w", "y"]);
  });
  it("preselects Variables that the selected block depends on, or other selected blocks", () => {
    expect(guessed("loss")).toEqual({ outputs: ["loss.out"], inputs: ["w.out"] });
    expect(guessed("loss", "y")).toEqual({ outputs: ["loss.out"], inputs: ["y.out[0]"] });
    expect(guessed()).toEqual({ outputs: ["loss.out"], inputs: ["w.out"] });
  });
  it("offers typed values that gradients flow to, and preselects them where there are no Variables", () => {
    const typed: Page = { ...page, blocks: [{ id: "m", op: "Mean", values: { data: [[1]], ids: [0] } }] };
    const known = { ...checked, blocks: { m: { outputs: { out: info("float32") }, inputs: { data: info("float32"), ids: info("int32") } } } };
    const catalog = { records: [], categories: [], find: () => ({ differentiable: ["data"] }) as unknown as OpRecord };
    const found = typedPins(typed, known, catalog);
    expect(found.map((pin) => pin.end)).toEqual(["m.data"]);
    expect(guess(typed, outputPins(typed, known), found, new Set(["m"]))).toEqual({ outputs: ["m.out"], inputs: ["m.data"] });
  });
});
