import { describe, expect, it } from "vitest";
import { arrange } from "../src/canvas/layout";
import { lanesOf } from "../src/canvas/nodes";
import { wiresOf } from "../src/page/page";
import { makeCatalog } from "../src/palette/catalog";
import { fittingPins, fitsOnWire, mayConnect } from "../src/wires/fits";
import { CATALOG, frozen, op, page, pin, small } from "./pages";

describe("suggestions for a wire", () => {
  it("compares kinds and dtypes", () => {
    expect(mayConnect(pin("a"), pin("b"), null)).toBe(true);
    expect(mayConnect(pin("a"), pin("b", { dtypes: ["int32"] }), null)).toBe(false);
    expect(mayConnect(pin("a", { dtypes: ["float32", "int32"] }), pin("b", { dtypes: ["int32"] }), "float32")).toBe(false);
    expect(mayConnect(pin("a", { type: "operation" }), pin("b"), null)).toBe(false);
    expect(mayConnect(pin("a", { type: "operation" }), pin("b", { type: "any" }), null)).toBe(true);
    expect(mayConnect(pin("a"), pin("b", { ref: true }), null)).toBe(false);
  });
  it("finds the pins of an op for either end", () => {
    const catalog = makeCatalog([...CATALOG.records, op("Ids", ["x"], ["ids"], { outputs: [pin("ids", { dtypes: ["int64"] })] })]);
    const pair = catalog.find("Pair")!;
    const from = { end: { block: "a", pin: "out", index: null }, side: "from" as const };
    expect(fittingPins(pair, small(), catalog, from, undefined).map((one) => one.name)).toEqual(["x", "y"]);
    const to = { end: { block: "p", pin: "x", index: null }, side: "to" as const };
    expect(fittingPins(catalog.find("Ids")!, small(), catalog, to, undefined)).toEqual([]);
    const wire = wiresOf(small())[0]!;
    expect(fitsOnWire(pair, small(), catalog, wire, undefined)).toBe(true);
    expect(fitsOnWire(catalog.find("Ids")!, small(), catalog, wire, undefined)).toBe(false);
  });
});

describe("lanes", () => {
  it("are different for wires into the same column, and the same for wires from one pin", () => {
    const blocks = [
      { id: "a", op: "Source", at: [0, 0] as [number, number] },
      { id: "b", op: "Source", at: [0, 300] as [number, number] },
      { id: "p", op: "Pair", at: [400, 600] as [number, number], in: { x: "a.out", y: "b.out" } },
      { id: "q", op: "Pair", at: [400, 800] as [number, number], in: { x: "a.out" } },
    ];
    const made = page(blocks);
    const [ax, by, aq] = lanesOf(made, wiresOf(made), CATALOG);
    expect(ax).not.toBe(by);
    expect(aq).toBe(ax);
  });
});

describe("automatic layout of a page", () => {
  it("carries notes along, fits frames to their blocks, and puts nothing on a block", () => {
    const before = frozen(
      page(
        [
          { id: "a", op: "Source", at: [0, 0] },
          { id: "b", op: "Source", at: [10, 10] },
          { id: "p", op: "Pair", at: [20, 900], in: { x: "a.out", y: "b.out" } },
        ],
        { notes: [{ text: "about p", at: [20, 860] }, { text: "frame", at: [-10, 850], size: [700, 400] }] },
      ),
    );
    const after = arrange(before, CATALOG);
    const p = after.blocks.find((block) => block.id === "p")!;
    const [note, frame] = after.notes!;
    expect(Math.hypot(note!.at![0] - p.at![0], note!.at![1] - p.at![1])).toBeLessThan(150);
    expect(note!.at![1]).toBeLessThan(p.at![1] - 30);
    expect(frame!.at![0]).toBeLessThan(p.at![0]);
    expect(frame!.at![1] + frame!.size![1]).toBeGreaterThan(p.at![1] + 50);
    const [a, b] = after.blocks;
    expect(Math.abs(a!.at![1] - b!.at![1])).toBeGreaterThan(60);
  });
});
