// Pins that a gradient can be taken of or with respect to, and the likely choice.

import { blockOf, endText, pinPath, wiresOf } from "../page/page";
import type { Catalog } from "../palette/catalog";
import type { Block, Checked, Info, Page } from "../transport/protocol";

export interface GradientPin {
  end: string; // block.pin, or block.pin[k] for an entry of a list
  block: string;
  info: Info;
  typed?: boolean; // an input pin with a typed value, which moves to a constant
}

/** Only floats have gradients. */
export function isFloat(info: Info): boolean {
  return info.kind === "tensor" && /float|complex/.test(info.dtype ?? "");
}

/** Every output pin of the page that holds floats. */
export function outputPins(page: Page, checked: Checked): GradientPin[] {
  return page.blocks.flatMap(({ id }) =>
    Object.entries(checked.blocks[id]?.outputs ?? {}).flatMap(([pin, found]) => {
      const many = Array.isArray(found);
      return (many ? found : [found]).map((info, k) => ({ end: endText({ block: id, pin, index: many ? k : null }), block: id, info })).filter(({ info }) => isFloat(info));
    }),
  );
}

/** Every input pin with a typed value of floats that gradients flow to. */
export function typedPins(page: Page, checked: Checked, catalog: Catalog): GradientPin[] {
  return page.blocks.flatMap(({ id, op, values }) =>
    (catalog.find(op)?.differentiable ?? []).flatMap((pin) => {
      const info = values?.[pin] === undefined ? undefined : checked.blocks[id]?.inputs[pin];
      return info && !Array.isArray(info) && isFloat(info) ? [{ end: pinPath(id, pin), block: id, info, typed: true }] : [];
    }),
  );
}

/** The pins whose typed values the changed blocks no longer have. */
export function movedPins(page: Page, changed: readonly Block[]): string[] {
  return changed.flatMap(({ id, values }) => Object.keys(blockOf(page, id)?.values ?? {}).flatMap((pin) => (values?.[pin] === undefined ? pinPath(id, pin) : [])));
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

/** Differentiate the selected blocks that no other selected block depends on, with respect to the other selected ones;
 *  without those, to the Variables before them, or else to every value that someone typed before them. Without a
 *  selection, take the last block of the page that holds floats. */
export function guess(page: Page, outputs: readonly GradientPin[], typed: readonly GradientPin[], chosen: ReadonlySet<string>): { outputs: string[]; inputs: string[] } {
  const last = [...page.blocks].reverse().find(({ id }) => outputs.some((pin) => pin.block === id) && !wiresOf(page).some((wire) => wire.from.block === id && outputs.some((pin) => pin.block === wire.to)));
  const selected = chosen.size ? chosen : new Set(last ? [last.id] : []);
  const first = (id: string) => outputs.find((pin) => pin.block === id)?.end;
  const isBefore = (id: string) => [...selected].some((other) => other !== id && upstream(page, [other]).has(id));
  const early = [...selected].filter(isBefore);
  const late = [...selected].filter((id) => !early.includes(id));
  const wanted = late.flatMap((id) => first(id) ?? []);
  const inputs = early.flatMap((id) => first(id) ?? []);
  if (inputs.length) return { outputs: wanted, inputs };
  const before = upstream(page, late);
  const variables = outputs.filter((pin) => pin.info.ref && before.has(pin.block) && !late.includes(pin.block) && !page.blocks.find(({ id }) => id === pin.block)?.in);
  if (variables.length) return { outputs: wanted, inputs: variables.map((pin) => pin.end) };
  const sources = outputs.filter((pin) => before.has(pin.block) && !late.includes(pin.block) && !page.blocks.find(({ id }) => id === pin.block)?.in);
  return { outputs: wanted, inputs: [...sources, ...typed.filter((pin) => before.has(pin.block))].map((pin) => pin.end) };
}
