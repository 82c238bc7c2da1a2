// How pins look: the role decides both colour and shape, so that neither carries the meaning alone.

import { endsAt } from "../page/page";
import type { Block, OpRecord, Pin } from "../transport/protocol";

export type Role = "values" | "ids" | "size" | "variable" | "operation" | "feed" | "sparse" | "any" | "setting";
export type Shape = "circle" | "square" | "diamond" | "triangle" | "hexagon" | "ring" | "star";

/** Shapes by role; a list pin is drawn twice, one behind the other. */
export const SHAPES: Record<Role, Shape> = {
  values: "circle",
  ids: "square",
  size: "triangle",
  variable: "ring",
  operation: "diamond",
  feed: "hexagon",
  sparse: "star",
  any: "circle",
  setting: "square",
};

export function roleOf(pin: Pin): Role {
  if (pin.type === "operation" || pin.type === "feed" || pin.type === "sparse" || pin.type === "any") return pin.type;
  if (pin.ref) return "variable";
  if (pin.host) return "size";
  return pin.role === "ids" ? "ids" : "values";
}

export function inputOf(record: OpRecord | undefined, name: string): Pin | undefined {
  return record?.inputs.find((pin) => pin.name === name);
}

export function outputOf(record: OpRecord | undefined, name: string): Pin | undefined {
  return record?.outputs.find((pin) => pin.name === name);
}

export function isMissing(block: Block, pin: Pin): boolean {
  return !pin.optional && !endsAt(block, pin.name).length && block.values?.[pin.name] === undefined;
}

/** Whether what the server says about a pin is that nothing was put into it yet: that is no mistake of a new block. */
export function lacksValue(block: Block | undefined, record: OpRecord | undefined, pin: string | null): boolean {
  const found = pin === null ? undefined : inputOf(record, pin);
  return block !== undefined && found !== undefined && isMissing(block, found);
}

/** A pin as text, for screen readers and tooltips. */
export function pinText(pin: Pin): string {
  const kinds: string[] = [];
  if (pin.many) kinds.push("list");
  if (pin.optional) kinds.push("optional");
  if (pin.host) kinds.push("decides shapes");
  if (pin.ref) kinds.push("a Variable itself");
  const types = pin.dtypes.length > 4 ? `${pin.dtypes.slice(0, 3).join(", ")}, … (${pin.dtypes.length})` : pin.dtypes.join(", ");
  return `${pin.name}: ${types}${kinds.length ? ` (${kinds.join(", ")})` : ""}`;
}
