// What a review found in pages that are odd, but are pages.

import { expect, it } from "vitest";
import { makeCatalog } from "../src/palette/catalog";
import { parsePage } from "../src/clipboard/clipboard";
import * as edit from "../src/page/edit";
import { frameContents } from "../src/canvas/layout";
import { wiredOutputs } from "../src/page/page";
import { fixPositions, positionsOf } from "../src/canvas/layout";
import type { Block, Page } from "../src/transport/protocol";

const page = (blocks: Block[], notes: Page["notes"] = []): Page => ({ format: "rowgrad-page", version: 1, name: "p", blocks, notes });

it("leaves blocks without places where they were shown when one is moved", () => {
  const before = page([{ id: "a", op: "A" }, { id: "b", op: "A" }]);
  const shown = positionsOf(before);
  const after = fixPositions(edit.move(before, new Map([["a", [900, 0]]])), before);
  expect(positionsOf(after).get("b")).toEqual(shown.get("b"));
  expect(fixPositions(after, before)).toBe(after);
});

it("finds what lies wholly inside a frame", () => {
  const blocks: Block[] = [{ id: "in", op: "A", at: [10, 10] }, { id: "half", op: "A", at: [390, 10] }, { id: "out", op: "A", at: [900, 10] }];
  const framed = page(blocks, [{ text: "", at: [0, 0], size: [400, 300] }, { text: "", at: [20, 200], size: [50, 50] }, { text: "", at: [380, 0] }]);
  const found = frameContents(framed, 0, makeCatalog([]), () => ({ width: 100, height: 50 }), () => undefined);
  expect(found).toEqual({ blocks: [["in", [10, 10]]], notes: [[1, [20, 200]]] });
  expect(frameContents(framed, 2, makeCatalog([]), () => undefined, () => undefined)).toEqual({ blocks: [], notes: [] });
});

it("knows the entries that wires speak of, whether they are there or not", () => {
  const wired = page([{ id: "a/b>c.d", op: "A" }, { id: "x", op: "A", in: { many: ["a/b>c.d.out[2]", "a/b>c.d.out[0]"], one: "a/b>c.d.other" } }]);
  expect(JSON.parse(wiredOutputs(wired, "a/b>c.d"))).toEqual({ out: 3, other: 0 });
  expect(wiredOutputs(wired, "x")).toBe("{}");
});

it("reads nothing to paste from an empty page, nor from places that are none", () => {
  expect(parsePage(JSON.stringify(page([])))).toBeNull();
  expect(parsePage(JSON.stringify({ ...page([{ id: "a", op: "A" }]), blocks: [{ id: "a", op: "A", at: ["x", 1] }] }))).toBeNull();
  expect(parsePage(JSON.stringify(page([{ id: "a", op: "A" }])))).not.toBeNull();
});
