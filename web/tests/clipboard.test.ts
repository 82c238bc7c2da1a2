import { describe, expect, it } from "vitest";
import { copyText, insertPage, parsePage } from "../src/clipboard/clipboard";
import { blockOf, wiresOf } from "../src/page/page";
import { frozen, page, small } from "./pages";

describe("copy", () => {
  it("keeps only wires between the copied blocks", () => {
    const copied = parsePage(copyText(frozen(small()), new Set(["a", "m"]), new Set()))!;
    expect(copied.blocks.map((block) => block.id)).toEqual(["a", "m"]);
    expect(wiresOf(copied)).toHaveLength(1);
    expect(blockOf(copied, "m")?.in).toEqual({ all: "a.out" });
    expect(blockOf(copied, "m")?.hidden).toEqual(["all"]);
  });
  it("drops hidden marks of pins that are no longer wired", () => {
    const copied = parsePage(copyText(frozen(small()), new Set(["m"]), new Set()))!;
    expect(copied.blocks[0]).toEqual({ id: "m", op: "Many", at: [600, 0] });
  });
  it("copies notes", () => {
    const noted = page([], { notes: [{ text: "0" }, { text: "1", at: [5, 5], size: [9, 9] }] });
    expect(parsePage(copyText(noted, new Set(), new Set([1])))?.notes).toEqual([{ text: "1", at: [5, 5], size: [9, 9] }]);
  });
  it.each(["", "{", "null", "3", "[]", '{"format":"other","blocks":[]}', '{"format":"rowgrad-page"}',
    '{"format":"rowgrad-page","blocks":[{}]}', '{"format":"rowgrad-page","blocks":[{"id":"a","op":"X"},{"id":"a","op":"X"}]}',
    '{"format":"rowgrad-page","blocks":[{"id":"a","op":"X","in":{"x":"nothing"}}]}', '{"format":"rowgrad-page","blocks":[],"notes":[3]}'])("%j is no page", (text) => {
    expect(parsePage(text)).toBeNull();
  });
});

describe("paste", () => {
  it("rejects an empty page and invalid positions", () => {
    expect(parsePage(JSON.stringify(page([])))).toBeNull();
    expect(parsePage(JSON.stringify({ ...page([{ id: "a", op: "A" }]), blocks: [{ id: "a", op: "A", at: ["x", 1] }] }))).toBeNull();
    expect(parsePage(JSON.stringify(page([{ id: "a", op: "A" }])))).not.toBeNull();
  });
  it("uses free names, and wires connect the new blocks", () => {
    const made = insertPage(frozen(small()), frozen(small()), [1000, 500]);
    expect([...made.ids]).toEqual(["a_2", "b_2", "p_2", "m_2"]);
    expect(blockOf(made.page, "p_2")).toEqual({ id: "p_2", op: "Pair", at: [1300, 500], in: { x: "a_2.out", y: "b_2.out" } });
    expect(blockOf(made.page, "m_2")?.in).toEqual({ all: ["a_2.out", "p_2.sum", "b_2.out"] });
    expect(made.page.blocks.slice(0, 4)).toEqual(small().blocks);
  });
  it("uses other names when pasted twice", () => {
    const once = insertPage(small(), small(), [0, 0]).page;
    const ids = insertPage(once, small(), [0, 0]).page.blocks.map((block) => block.id);
    expect(new Set(ids).size).toBe(12);
  });
  it("does not reuse a name that it has just assigned", () => {
    const there = page([{ id: "a", op: "Source" }]);
    const pasted = page([{ id: "a", op: "Source" }, { id: "a_2", op: "Source" }, { id: "p", op: "Pair", in: { x: "a.out", y: "a_2.out" } }]);
    const made = insertPage(there, pasted, [0, 0]);
    const wired = blockOf(made.page, "p")!.in!;
    expect(new Set(made.page.blocks.map((block) => block.id)).size).toBe(4);
    expect(wired["x"]).not.toBe(wired["y"]);
    expect(wiresOf(made.page).every((wire) => made.ids.has(wire.from.block))).toBe(true);
  });
  it("drops wires from blocks that were not copied, even if the page has a block of that name", () => {
    const pasted = page([{ id: "q", op: "Pair", in: { x: "a.out" }, hidden: ["x"] }]);
    expect(blockOf(insertPage(small(), pasted, [0, 0]).page, "q")).toEqual({ id: "q", op: "Pair", at: [0, 0] });
  });
  it("positions the common corner of blocks and notes", () => {
    const pasted = page([{ id: "q", op: "Source", at: [50, 70] }], { notes: [{ text: "n", at: [40, 90] }] });
    const made = insertPage(small(), pasted, [0, 0]);
    expect(blockOf(made.page, "q")?.at).toEqual([10, 0]);
    expect(made.page.notes).toEqual([{ text: "n", at: [0, 20] }]);
    expect([...made.notes]).toEqual([0]);
  });
  it("spreads blocks without a position", () => {
    const pasted = page([{ id: "q", op: "Source" }, { id: "r", op: "Source" }, { id: "s", op: "Pair", in: { x: "q.out" } }]);
    const made = insertPage(small(), pasted, [100, 100]);
    const at = [...made.ids].map((id) => blockOf(made.page, id)!.at!.join());
    expect(new Set(at).size).toBe(3);
    expect(at[0]).toBe("100,100");
  });
  it("changes nothing for an empty page", () => {
    expect(insertPage(small(), page([]), [5, 5]).page.blocks).toEqual(small().blocks);
  });
});
