// Which result the panels show, and which results are stale.

import { beforeEach, describe, expect, it } from "vitest";
import { EMPTY } from "../src/page/page";
import { begin } from "../src/history/history";
import { listResults, shownResult } from "../src/results/results";
import { segmentsOf } from "../src/trace/useRowTraces";
import { staleReason } from "../src/results/stale";
import type { Doc } from "../src/app/store";
import { NOTHING_SELECTED, set, useStudio } from "../src/app/store";
import type { Page, RunState } from "../src/transport/protocol";

const one = (run: number, shape: number[] = [], steady = false) => ({ info: { text: "", kind: "tensor" as const, dtype: "float32", shape }, run, steady, preview: "" });
const run: RunState = {
  phase: "done",
  done: 1,
  serial: 1, run: 3, steps: null, mode: "once", rate: null, per_second: 0, seconds: 0.1, engine: "numpy", error: null, revision: "r",
  recipes: { a: "1", b: "2", c: "3", d: "4" }, costs: {}, carried: [], saved: null,
  results: { a: { out: one(3, [2, 2]) }, b: { out: [one(3, [3]), one(3, [4])] }, c: { out: one(2) }, d: { out: one(1, [], true) } },
}; // prettier-ignore
const page: Page = {
  ...EMPTY,
  blocks: [{ id: "a", op: "A" }, { id: "b", op: "B" }, { id: "c", op: "C", in: { x: ["b.out[1]", "a.out"] } }, { id: "d", op: "D" }, { id: "s", op: "S", in: { fetch: "c.out" } }],
}; // prettier-ignore
const checked = { blocks: {}, errors: {}, waiting: [], sessions: ["s"], recipes: { a: "1", b: "2", c: "3", d: "4" } };
const open = (more: Partial<Doc> = {}): Doc => ({ name: "p", page, history: begin(page), revision: "r", sent: page, checked, run, saving: "saved", ...NOTHING_SELECTED, ...more });

beforeEach(() => set({ shown: null, docs: {}, active: null }));

describe("the shown result", () => {
  const results = listResults(run);
  it("is listed entry by entry", () => {
    expect(results.map((result) => result.key)).toEqual(["a.out", "b.out[0]", "b.out[1]", "c.out", "d.out"]);
    expect(results[1]!.label).toBe("result_out[0]");
  });
  it("is the requested one, else the selected block's, else one that a session fetches", () => {
    expect(shownResult(results, open(), { block: "b", pin: "out", entry: 1 })!.key).toBe("b.out[1]");
    expect(shownResult(results, open({ blocks: new Set(["a"]) }), null)!.key).toBe("a.out");
    expect(shownResult(results, open(), null)!.key).toBe("c.out");
    expect(shownResult(results, open(), { block: "gone", pin: "out", entry: null })!.key).toBe("c.out");
    expect(shownResult([], open(), null)).toBeNull();
  });
  it("follows the selection", () => {
    set({ docs: { p: open() }, active: "p", shown: { block: "a", pin: "out", entry: null } });
    set({ docs: { p: open({ blocks: new Set(["a"]) }) } });
    expect(useStudio.getState().shown?.block).toBe("a");
    set({ docs: { p: open({ blocks: new Set(["b"]) }) } });
    expect(useStudio.getState().shown).toBeNull();
  });
});

describe("a result is stale", () => {
  it("if a later run skipped it and could have changed it", () => {
    expect(staleReason(open(), "a")).toBeNull();
    expect(staleReason(open(), "c")).toMatch(/^stale: this is of run 2/);
    expect(staleReason(open(), "d")).toBeNull();
  });
  it("if the block or a dependency changed", () => {
    const changed = open({ checked: { ...checked, recipes: { ...checked.recipes, a: "9" } } });
    expect(staleReason(changed, "a")).toBe("stale: the block or something before it has changed since run 3");
    const { a: _, ...rest } = checked.recipes;
    expect(staleReason(open({ checked: { ...checked, recipes: rest } }), "a")).toMatch(/no longer on the page/);
  });
});

describe("rows of a block's pins", () => {
  it("have the sizes of the last run, wire by wire", () => {
    expect(segmentsOf(open(), "c", ["x"], "inputs")).toEqual([
      { pin: "x", label: "x[0]", size: 4 },
      { pin: "x", label: "x[1]", size: 2 },
    ]);
    expect(segmentsOf(open(), "b", ["out"], "outputs").map((segment) => segment.size)).toEqual([3, 4]);
  });
});
