// Pins that a gradient can be taken of or with respect to, and the likely choice.

import { endText, wiresOf } from "../page/page";
import type { Checked, Info, Page } from "../transport/protocol";

export interface GradientPin {
  end: string; // block.pin, or block.pin[k] for an entry of a list
  block: string;
  info: Info;
}

/** Every output pin of the page that holds an array. */
export function pinsOf(page: Page, checked: Checked): GradientPin[] {
  return page.blocks.flatMap(({ id }) =>
    Object.entries(checked.blocks[id]?.outputs ?? {}).flatMap(([pin, found]) => {
      const many = Array.isArray(found);
      return (many ? found : [found]).map((info, k) => ({ end: endText({ block: id, pin, index: many ? k : null }), block: id, info })).filter(({ info }) => info.kind === "tensor");
    }),
  );
}

/** These blocks and everything they depend on. */
export function upstream(page: Page, blocks: Iterable<string>): Set<string> {
  const before = new Map<string, Set<string>>();
  for (const wire of wiresOf(page)) {
    const found = before.get(wire.to) ?? new Set();
    before.set(wire.to, found.add(wire.from.block));
  }
  const found = new Set<string>();
  const waiting = [...blocks];
  while (waiting.length) {
    const id = waiting.pop()!;
    if (found.has(id)) continue;
    found.add(id);
    waiting.push(...(before.get(id) ?? []));
  }
  return found;
}

/** Differentiate the selected blocks that no other selected block depends on, with respect to the other selected ones. */
export function guess(page: Page, pins: readonly GradientPin[], selected: ReadonlySet<string>): { outputs: string[]; inputs: string[] } {
  const first = (id: string) => {
    const own = pins.filter((pin) => pin.block === id);
    return own.find(({ info }) => /float|complex/.test(info.dtype ?? ""))?.end ?? own[0]?.end;
  };
  const isBefore = (id: string) => [...selected].some((other) => other !== id && upstream(page, [other]).has(id));
  const early = [...selected].filter(isBefore);
  const late = [...selected].filter((id) => !early.includes(id));
  const outputs = late.flatMap((id) => first(id) ?? []);
  const inputs = early.flatMap((id) => first(id) ?? []);
  if (inputs.length) return { outputs, inputs };
  const before = upstream(page, late);
  return { outputs, inputs: pins.filter((pin) => pin.info.ref && before.has(pin.block) && !late.includes(pin.block)).map((pin) => pin.end) };
}
