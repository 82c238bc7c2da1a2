import { describe, expect, it } from "vitest";
import type { Alignment } from "../src/canvas/layout";
import { WIDTH, align, autoLayout, fixPositions, frameAround, frameContents, freePlace, makeSpace, positionsOf, sizeOf, snap } from "../src/canvas/layout";
import { addBlock, move } from "../src/page/edit";
import type { Block } from "../src/transport/protocol";
import { CATALOG, frozen, page, small } from "./pages";

const blocks: Block[] = [
  { id: "a", op: "Source", at: [10, 20] },
  { id: "b", op: "Pair", at: [300, 150] },
  { id: "c", op: "Source", at: [900, 500] },
];
const overlap = (x: [number, number], y: [number, number], height: number) => Math.abs(x[0] - y[0]) < WIDTH && Math.abs(x[1] - y[1]) < height;

describe("align", () => {
  const end = (how: Alignment) => (id: string) => align(frozen(blocks), CATALOG, how).get(id)!;
  const height = (k: number) => sizeOf(CATALOG.find(blocks[k]!.op)).height;
  it("left, right, top and bottom", () => {
    expect(["a", "b", "c"].map(end("left")).map(([x]) => x)).toEqual([10, 10, 10]);
    expect(["a", "b", "c"].map(end("right")).map(([x]) => x)).toEqual([900, 900, 900]);
    expect(["a", "b", "c"].map(end("top")).map(([, y]) => y)).toEqual([20, 20, 20]);
    expect(["a", "b", "c"].map(end("bottom")).map(([, y], k) => y + height(k))).toEqual([500 + height(2), 500 + height(2), 500 + height(2)]);
    expect(end("left")("b")[1]).toBe(150);
    expect(end("top")("b")[0]).toBe(300);
  });
  it("middles and centres", () => {
    const middles = ["a", "b", "c"].map(end("middle")).map(([, y], k) => y + height(k) / 2);
    expect(new Set(middles).size).toBe(1);
    expect(new Set(["a", "b", "c"].map(end("centre")).map(([x]) => x)).size).toBe(1);
  });
  it("distributes evenly and keeps the outer blocks", () => {
    const [a, b, c] = ["a", "b", "c"].map(end("across"));
    expect([a![0], c![0]]).toEqual([10, 900]);
    expect(b![0] - a![0]).toBe(c![0] - b![0]);
    const down = ["a", "b", "c"].map(end("down"));
    expect(down[1]![1] - (down[0]![1] + height(0))).toBeCloseTo(down[2]![1] - (down[1]![1] + height(1)));
  });
});

describe("layout", () => {
  it("places blocks along the wires without overlap", () => {
    const places = autoLayout(frozen(small()), CATALOG);
    expect(places.size).toBe(4);
    expect(places.get("a")![0]).toBeLessThan(places.get("p")![0]);
    expect(places.get("p")![0]).toBeLessThan(places.get("m")![0]);
    const all = [...places.values()];
    all.forEach((one, i) => all.slice(i + 1).forEach((other) => expect(overlap(one, other, 66)).toBe(false)));
    for (const [x, y] of all) expect([x % 10, y % 10].map(Math.abs)).toEqual([0, 0]);
  });
  it("of a selection moves no other block and keeps its corner", () => {
    const places = autoLayout(frozen(small()), CATALOG, new Set(["p", "m"]));
    expect([...places.keys()].sort()).toEqual(["m", "p"]);
    expect(Math.min(...[...places.values()].map(([x]) => x))).toBeGreaterThanOrEqual(300);
  });
  it("handles cycles, unknown ops and empty pages", () => {
    const loop = page([{ id: "a", op: "Nowhere", in: { x: "b.out" } }, { id: "b", op: "Pair", in: { x: "a.out" } }]);
    expect(autoLayout(loop, CATALOG).size).toBe(2);
    expect(autoLayout(page([]), CATALOG).size).toBe(0);
  });
});

describe("freePlace", () => {
  it("is the wanted position if that is free", () => {
    expect(freePlace(small(), CATALOG, [2003, 1998], CATALOG.find("Source"))).toEqual([2000, 2000]);
  });
  it("does not stack blocks that are placed at one position", () => {
    let made = page([]);
    for (let k = 0; k < 60; k++) {
      const at = freePlace(made, CATALOG, [100, 100], CATALOG.find("Pair"));
      made = addBlock(made, "Pair", "p", at)[0];
    }
    const { height } = sizeOf(CATALOG.find("Pair"));
    const all = made.blocks.map((block) => block.at!);
    all.forEach((one, i) => all.slice(i + 1).forEach((other) => expect(overlap(one, other, height)).toBe(false)));
  });
  it("avoids blocks without a stored position", () => {
    const unplaced = page([{ id: "a", op: "Source" }, { id: "b", op: "Source" }]);
    const shown = [...positionsOf(unplaced).values()];
    const at = freePlace(unplaced, CATALOG, shown[1]!, CATALOG.find("Source"));
    for (const other of shown) expect(overlap(at, other, sizeOf(CATALOG.find("Source")).height)).toBe(false);
  });
});

describe("frame", () => {
  it("finds what is entirely inside", () => {
    const blocks: Block[] = [{ id: "in", op: "A", at: [10, 10] }, { id: "half", op: "A", at: [390, 10] }, { id: "out", op: "A", at: [900, 10] }];
    const framed = page(blocks, { notes: [{ text: "", at: [0, 0], size: [400, 300] }, { text: "", at: [20, 200], size: [50, 50] }, { text: "", at: [380, 0] }] });
    const found = frameContents(framed, 0, CATALOG, () => ({ width: 100, height: 50 }), () => undefined);
    expect(found).toEqual({ blocks: [["in", [10, 10]]], notes: [[1, [20, 200]]] });
    expect(frameContents(framed, 2, CATALOG, () => undefined, () => undefined)).toEqual({ blocks: [], notes: [] });
  });
  it("contains all blocks", () => {
    const { at, size } = frameAround(blocks, CATALOG, "F");
    for (const block of blocks) {
      const { width, height } = sizeOf(CATALOG.find(block.op));
      expect(at![0]).toBeLessThan(block.at![0]);
      expect(at![1]).toBeLessThan(block.at![1]);
      expect(at![0] + size![0]).toBeGreaterThan(block.at![0] + width);
      expect(at![1] + size![1]).toBeGreaterThan(block.at![1] + height);
    }
  });
});

describe("positions of blocks without one", () => {
  it("are right of the others, in columns along the wires", () => {
    const { at: _, ...p } = small().blocks[2]!;
    const { at: __, ...m } = small().blocks[3]!;
    const places = positionsOf(page([small().blocks[0]!, small().blocks[1]!, p, m]));
    expect(places.get("a")).toEqual([0, 0]);
    expect(places.get("p")![0]).toBeGreaterThanOrEqual(WIDTH);
    expect(places.get("m")![0]).toBeGreaterThan(places.get("p")![0]);
  });
  it("handle cycles and long chains", () => {
    const chain = page(Array.from({ length: 5000 }, (_, k) => ({ id: `b${k}`, op: "Pair", in: { x: `b${(k + 4999) % 5000}.sum` } })));
    expect(positionsOf(chain).size).toBe(5000);
  });
  it("keep unchanged blocks identical", () => {
    const before = small();
    expect(move(before, new Map([["a", [0, 0]]])).blocks[0]).toBe(before.blocks[0]);
    expect(snap([14, -16])).toEqual([10, -20]);
  });
  it("stay where they were shown when another block is moved", () => {
    const before = page([{ id: "a", op: "A" }, { id: "b", op: "A" }]);
    const shown = positionsOf(before);
    const after = fixPositions(move(before, new Map([["a", [900, 0]]])), before);
    expect(positionsOf(after).get("b")).toEqual(shown.get("b"));
    expect(fixPositions(after, before)).toBe(after);
  });
});

describe("makeSpace", () => {
  const size = { width: 240, height: 100 };
  const made = () => page(["a", "b", "c", "aside"].map((id, k) => ({ id, op: "Source", at: [k === 3 ? 400 : 0, k === 3 ? 60 : 130 * k] as [number, number] })), { notes: [{ text: "n", at: [0, 390] }] });
  const sizes = (height: number) => new Map([["a", { width: 240, height }], ...["b", "c", "aside"].map((id) => [id, size] as const), ["note 0", { width: 100, height: 30 }] as const]);
  it("moves what is below a block that grew, and what is below that", () => {
    const moved = makeSpace(frozen(made()), sizes(160), new Map([["a", 60]]));
    const at = Object.fromEntries(moved.blocks.map((block) => [block.id, block.at]));
    expect([at["a"], at["aside"]]).toEqual([[0, 0], [400, 60]]);
    expect(at["b"]![1]).toBeGreaterThanOrEqual(160 + 18);
    expect(at["c"]![1]).toBeGreaterThanOrEqual(at["b"]![1] + 100 + 18);
    expect(moved.notes![0]!.at![1]).toBeGreaterThanOrEqual(at["c"]![1] + 100);
    expect(makeSpace(moved, sizes(160), new Map([["a", 60]]))).toBe(moved);
  });
  it("leaves blocks that lay on one another before, and small growth", () => {
    expect(makeSpace(made(), sizes(105), new Map([["a", 5]])).blocks).toEqual(made().blocks);
    const on = page([{ id: "a", op: "Source", at: [0, 0] }, { id: "b", op: "Source", at: [10, 50] }]);
    expect(makeSpace(on, sizes(160), new Map([["a", 60]]))).toBe(on);
  });
  it("makes a frame higher with what is inside", () => {
    const framed = { ...made(), notes: [{ text: "f", at: [-20, -60] as [number, number], size: [300, 180] as [number, number] }] };
    const moved = makeSpace(framed, sizes(160), new Map([["a", 60]]));
    expect(moved.notes![0]!.size![1] - 60).toBeGreaterThan(160);
    expect(moved.notes![0]!.size![0]).toBe(300);
  });
});
