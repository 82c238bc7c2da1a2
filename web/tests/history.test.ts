import { describe, expect, it } from "vitest";
import * as edit from "../src/page/edit";
import { begin, deserialize, goTo, pageAt, record, serialize } from "../src/history/history";
import type { History } from "../src/history/history";
import type { Page } from "../src/transport/protocol";
import { frozen, page, small } from "./pages";

function grown(steps: number): History {
  let history = begin(frozen(small()));
  for (let k = 1; k <= steps; k++) history = record(history, `step ${k}`, edit.addBlock(pageAt(history), "Source", "n", [k, k])[0]);
  return history;
}

describe("steps", () => {
  it("go back and forth, but not beyond the ends", () => {
    const history = grown(3);
    expect(pageAt(goTo(history, 0)).blocks).toHaveLength(4);
    expect(goTo(history, -5).now).toBe(0);
    expect(goTo(history, 99).now).toBe(3);
  });
  it("a new step replaces undone ones", () => {
    const back = goTo(grown(3), 1);
    const next = record(back, "other", small());
    expect(next.steps.map((step) => step.label)).toEqual(["opened", "step 1", "other"]);
  });
  it("with the same label are merged, but never into the first page", () => {
    let history = begin(small(), "move");
    for (const x of [1, 2, 3]) history = record(history, "move", edit.move(small(), new Map([["a", [x, 0]]])), true);
    expect(history.steps.map((step) => step.label)).toEqual(["move", "move"]);
    expect(pageAt(history).blocks[0]!.at).toEqual([3, 0]);
    expect(pageAt(goTo(history, 0)).blocks[0]!.at).toEqual([0, 0]);
    expect(record(record(history, "other", small()), "move", small(), true).steps).toHaveLength(4);
  });
  it("are limited in number", () => {
    const history = grown(400);
    expect(history.steps).toHaveLength(300);
    expect(history.now).toBe(299);
    expect(pageAt(history).blocks).toHaveLength(404);
  });
});

describe("serialized history", () => {
  const through = (history: History, most?: number) => deserialize(JSON.parse(JSON.stringify(serialize(history, most))) as ReturnType<typeof serialize>);

  it("restores every kind of change", () => {
    const makes: ((page: Page) => Page)[] = [
      (p) => edit.addBlock(p, "Source", "new", [1, 2])[0],
      (p) => edit.rename(p, "a", "z"),
      (p) => edit.addNote(p, { text: "note", at: [0, 0] }),
      (p) => edit.remove(p, new Set(["p"])),
      (p) => edit.changeNote(p, 0, { text: "other", size: [3, 4] }),
      (p) => ({ ...p, blocks: [...p.blocks].reverse() }),
      (p) => edit.remove(p, new Set(), new Set([0])),
      (p) => ({ ...p, name: "renamed" }),
      (p) => edit.setValue(p, "m", "all", { dtype: "int64", shape: [1], data: ["9007199254740993"] }),
      () => page([]),
      () => small(),
    ];
    let history = begin(frozen(small()));
    makes.forEach((make, k) => (history = record(history, `${k}`, make(pageAt(history)))));
    for (let k = 0; k < history.steps.length; k++) {
      const back = through(goTo(history, k));
      expect(back).toEqual(goTo(history, k));
    }
  });
  it("distinguishes a removed block from a new one of the same name", () => {
    let history = begin(frozen(small()));
    history = record(history, "cut", edit.remove(pageAt(history), new Set(["a"])));
    history = record(history, "add", edit.addBlock(pageAt(history), "Many", "a", [9, 9])[0]);
    expect(through(history)).toEqual(history);
  });
  it.each([2, 15, 60])("restores the page and its last steps, with at most %i steps", (most) => {
    const history = grown(80);
    const back = through(history, most);
    expect(back.steps).toHaveLength(most);
    expect(pageAt(back)).toEqual(pageAt(history));
    expect(pageAt(goTo(back, back.now - 1))).toEqual(pageAt(goTo(history, 79)));
  });
  it("keeps the current step when many are undone", () => {
    const history = goTo(grown(80), 3);
    const back = through(history, 15);
    expect(pageAt(back)).toEqual(pageAt(history));
    expect(pageAt(goTo(back, back.now + 1))).toEqual(pageAt(goTo(history, 4)));
  });
  it("does not repeat unchanged blocks", () => {
    const big = page(Array.from({ length: 500 }, (_, k) => ({ id: `b${k}`, op: "Source", at: [k, k] as [number, number] })));
    let history = begin(big);
    for (let k = 0; k < 50; k++) history = record(history, "move", edit.move(pageAt(history), new Map([["b0", [k + 1, 0]]])));
    expect(JSON.stringify(serialize(history)).length).toBeLessThan(1.3 * JSON.stringify(big).length);
  });
});
