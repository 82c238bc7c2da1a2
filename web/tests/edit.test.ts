import { describe, expect, it } from "vitest";
import * as edit from "../src/page/edit";
import { blockOf, endText, endsAt, freeId, nameFault, parseEnd, samePage, wiredOutputs, wiresOf } from "../src/page/page";
import type { Page } from "../src/transport/protocol";
import { frozen, page, small } from "./pages";

const wires = (of: Page) => wiresOf(of).map((wire) => `${endText(wire.from)} > ${wire.to}.${wire.pin}.${wire.place}`);

/** No wire starts at a missing block, names are unique, and no pin has both a wire and a value. */
function sound(of: Page): void {
  const ids = of.blocks.map((block) => block.id);
  expect(new Set(ids).size).toBe(ids.length);
  for (const wire of wiresOf(of)) expect(ids).toContain(wire.from.block);
  for (const block of of.blocks) for (const name of Object.keys(block.in ?? {})) expect(block.values?.[name]).toBeUndefined();
}

describe("ends of wires", () => {
  it.each(["a.out", "a.out[3]", "a/b.c.out", "x.y[0].out[12]"])("%s parses and formats to itself", (text) => {
    expect(endText(parseEnd(text))).toBe(text);
  });
  it("have a block, a pin and an index", () => {
    expect(parseEnd("scope/a.b.out[2]")).toEqual({ block: "scope/a.b", pin: "out", index: 2 });
    expect(() => parseEnd("nothing")).toThrow(/not an end of a wire/);
  });
});

describe("wiredOutputs", () => {
  it("lists the entries that wires name, whether they exist or not", () => {
    const wired = page([{ id: "a/b>c.d", op: "A" }, { id: "x", op: "A", in: { many: ["a/b>c.d.out[2]", "a/b>c.d.out[0]"], one: "a/b>c.d.other" } }]);
    expect(JSON.parse(wiredOutputs(wired, "a/b>c.d"))).toEqual({ out: 3, other: 0 });
    expect(wiredOutputs(wired, "x")).toBe("{}");
  });
});

describe("connect", () => {
  it("replaces the wire of a single pin", () => {
    const next = edit.connect(frozen(small()), { block: "b", pin: "out", index: null }, "p", "x", false);
    expect(blockOf(next, "p")?.in).toEqual({ x: "b.out", y: "b.out" });
    sound(next);
  });
  it("appends to a list pin, without duplicates", () => {
    const from = { block: "a", pin: "out", index: 1 };
    const next = edit.connect(frozen(small()), from, "m", "all", true);
    expect(endsAt(blockOf(next, "m")!, "all")).toEqual(["a.out", "p.sum", "b.out", "a.out[1]"]);
    expect(blockOf(edit.connect(next, from, "m", "all", true), "m")).toEqual(blockOf(next, "m"));
  });
  it("replaces a typed value, and is replaced by one", () => {
    const typed = edit.setValue(frozen(small()), "p", "x", 3);
    expect(blockOf(typed, "p")).toMatchObject({ in: { y: "b.out" }, values: { x: 3 } });
    sound(typed);
    const wired = edit.connect(frozen(typed), { block: "a", pin: "out", index: null }, "p", "x", false);
    expect(blockOf(wired, "p")?.values).toBeUndefined();
    sound(wired);
  });
  it("typing over a hidden wire removes the hidden mark", () => {
    const hidden = edit.setHidden(frozen(small()), "p", "x", true);
    expect(blockOf(edit.setValue(frozen(hidden), "p", "x", 1), "p")?.hidden).toBeUndefined();
  });
});

describe("disconnect and reorder", () => {
  it("removes one wire of a list and keeps the order", () => {
    const next = edit.disconnect(frozen(small()), { to: "m", pin: "all", place: 1 });
    expect(endsAt(blockOf(next, "m")!, "all")).toEqual(["a.out", "b.out"]);
  });
  it("leaves no empty entries", () => {
    let next = frozen(small());
    for (const place of [2, 1, 0]) next = edit.disconnect(next, { to: "m", pin: "all", place });
    expect(blockOf(next, "m")).toEqual({ id: "m", op: "Many", at: [600, 0] });
  });
  it.each([
    [0, 2, ["p.sum", "b.out", "a.out"]],
    [2, 0, ["b.out", "a.out", "p.sum"]],
    [1, 1, ["a.out", "p.sum", "b.out"]],
    [7, 0, ["a.out", "p.sum", "b.out"]],
  ])("moves place %i to %i", (from, to, expected) => {
    expect(endsAt(blockOf(edit.reorder(frozen(small()), "m", "all", from, to), "m")!, "all")).toEqual(expected);
  });
});

describe("rename and remove", () => {
  it("renames the ends of all wires", () => {
    const next = edit.rename(frozen(small()), "a", "first.one");
    expect(wires(next)).toEqual(["first.one.out > p.x.0", "b.out > p.y.0", "first.one.out > m.all.0", "p.sum > m.all.1", "b.out > m.all.2"]);
    expect(blockOf(next, "m")?.hidden).toEqual(["all"]);
    sound(next);
  });
  it("handles a block wired to itself", () => {
    const loop = page([{ id: "a", op: "Pair", in: { x: "a.sum" } }]);
    expect(wires(edit.rename(frozen(loop), "a", "b"))).toEqual(["b.sum > b.x.0"]);
  });
  it("does not touch names with the same prefix", () => {
    const two = page([{ id: "a", op: "Source" }, { id: "a.b", op: "Source" }, { id: "p", op: "Pair", in: { x: "a.out", y: "a.b.out" } }]);
    expect(blockOf(edit.rename(frozen(two), "a", "z"), "p")?.in).toEqual({ x: "z.out", y: "a.b.out" });
  });
  it("removes a block's wires and their hidden marks", () => {
    const next = edit.remove(frozen(small()), new Set(["a", "p", "b"]));
    expect(next.blocks).toEqual([{ id: "m", op: "Many", at: [600, 0] }]);
    sound(edit.remove(frozen(small()), new Set(["p"])));
    expect(wires(edit.remove(frozen(small()), new Set(["p"])))).toEqual(["a.out > m.all.0", "b.out > m.all.1"]);
  });
  it("removes notes by number, and the empty list", () => {
    const noted = frozen(page([], { notes: [{ text: "0" }, { text: "1" }, { text: "2" }] }));
    expect(edit.remove(noted, new Set(), new Set([0, 2])).notes).toEqual([{ text: "1" }]);
    expect("notes" in edit.remove(noted, new Set(), new Set([0, 1, 2]))).toBe(false);
  });
  it("shares unchanged blocks", () => {
    const before = small();
    const after = edit.rename(before, "b", "c");
    expect(after.blocks[0]).toBe(before.blocks[0]);
  });
});

describe("attributes, parameters, notes", () => {
  it("leave no empty entries when cleared", () => {
    const set = edit.setAttr(frozen(small()), "p", "axis", 1);
    expect(blockOf(set, "p")?.attrs).toEqual({ axis: 1 });
    expect("attrs" in blockOf(edit.setAttr(frozen(set), "p", "axis", undefined), "p")!).toBe(false);
  });
  it("are pasted if both blocks have them", () => {
    const from = { id: "q", op: "Pair", values: { x: 1, other: 2 }, attrs: { axis: 0, gone: 1 } };
    const block = blockOf(edit.pasteParameters(frozen(small()), "p", from, ["x", "y"], ["axis"]), "p")!;
    expect(block).toMatchObject({ values: { x: 1 }, attrs: { axis: 0 }, in: { y: "b.out" } });
  });
  it("a note is added and changed", () => {
    const one = edit.addNote(frozen(small()), { text: "hello", at: [1, 2] });
    expect(edit.changeNote(frozen(one), 0, { text: "bye" }).notes).toEqual([{ text: "bye", at: [1, 2] }]);
  });
});

describe("names", () => {
  it("are free", () => {
    const [next, id] = edit.addBlock(frozen(small()), "Source", "a", [0, 0]);
    expect(id).toBe("a_2");
    expect(edit.addBlock(next, "Source", "a", [0, 0])[1]).toBe("a_3");
    expect(freeId(new Set(["x_2", "x"]), "x_2")).toBe("x_3");
  });
  it("are validated", () => {
    expect(nameFault(small(), "a", "a")).toBeNull();
    expect(nameFault(small(), "a", "b")).toMatch(/another block/);
    expect(nameFault(small(), "a", "-x")).toMatch(/begin with/);
    expect(nameFault(small(), "a", "")).not.toBeNull();
  });
});

describe("samePage", () => {
  it("ignores the order of entries, lists of one, empty lists and the name", () => {
    const a = page([{ id: "p", op: "Pair", in: { x: ["a.out"], y: "b.out" }, attrs: {}, hidden: ["y", "x"] }], { notes: [] });
    const b = page([{ op: "Pair", hidden: ["x", "y"], in: { y: "b.out", x: "a.out" }, id: "p" }], { name: "other" });
    expect(samePage(a, b)).toBe(true);
  });
  it("compares everything else", () => {
    const changed: Page[] = [
      edit.move(small(), new Map([["a", [1, 0]]])),
      edit.reorder(small(), "m", "all", 0, 1),
      edit.setHidden(small(), "m", "all", false),
      edit.addNote(small(), { text: "" }),
      { ...small(), blocks: [...small().blocks].reverse() },
    ];
    for (const other of changed) expect(samePage(small(), other)).toBe(false);
  });
});
