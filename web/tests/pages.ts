// Pages and a catalogue for tests. The records are invented: nothing here depends on the real catalogue.

import { makeCatalog } from "../src/palette/catalog";
import type { Block, OpRecord, Page, Pin } from "../src/transport/protocol";

export function pin(name: string, more: Partial<Pin> = {}): Pin {
  return { name, type: "tensor", host: false, many: false, ref: false, optional: false, role: "values", dtypes: ["float32"], ...more };
}

export function op(name: string, inputs: string[], outputs: string[], more: Partial<OpRecord> = {}): OpRecord {
  const snake = name.replace(/(?<!^)([A-Z])/g, "_$1").toLowerCase();
  return {
    name, snake_name: snake, aliases: [], category: "Made up", layer: "kernel", tensorflow: false, doc: "", example: "",
    inputs: inputs.map((text) => pin(text)), outputs: outputs.map((text) => pin(text)), attrs: {}, differentiable: [], linear: [], runs: false, traced: false, ...more,
  }; // prettier-ignore
}

export const CATALOG = makeCatalog([op("Source", [], ["out"]), op("Pair", ["x", "y"], ["sum"]), op("Many", ["all"], ["out"])]);

export function page(blocks: Block[], more: Partial<Page> = {}): Page {
  return { format: "rowgrad-page", version: 1, name: "page", blocks, ...more };
}

/** Two sources, a pair of them, and a list of everything. */
export function small(): Page {
  return page([
    { id: "a", op: "Source", at: [0, 0] },
    { id: "b", op: "Source", at: [0, 200] },
    { id: "p", op: "Pair", at: [300, 0], in: { x: "a.out", y: "b.out" } },
    { id: "m", op: "Many", at: [600, 0], in: { all: ["a.out", "p.sum", "b.out"] }, hidden: ["all"] },
  ]);
}

/** Freeze a value deeply, so that a change in place is an error. */
export function frozen<T>(value: T): T {
  if (typeof value === "object" && value !== null) {
    Object.values(value).forEach(frozen);
    Object.freeze(value);
  }
  return value;
}
