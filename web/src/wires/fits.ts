// Which ops to suggest for a wire, by their records. Only a suggestion: the server validates every wire.

import { inputOf, outputOf } from "../blocks/pins";
import type { End, Wire } from "../page/page";
import { blockOf } from "../page/page";
import type { Catalog } from "../palette/catalog";
import type { Info, OpRecord, Page, Pin } from "../transport/protocol";

const OWN_KINDS = ["operation", "feed", "sparse"]; // of pins that carry something other than an array

export function kindOf(pin: Pin): string {
  return OWN_KINDS.includes(pin.type) || pin.type === "any" ? pin.type : "tensor";
}

/** Whether a wire from one pin to the other may be possible; `dtype` is that of the wire, if it is known. */
export function mayConnect(from: Pin, to: Pin, dtype: string | null): boolean {
  const [a, b] = [kindOf(from), kindOf(to)];
  if (a !== b && a !== "any" && b !== "any") return false;
  if (to.ref) return false; // a Variable itself, which only its own block has
  if (a === "any" || b === "any") return true;
  const accepted = (one: string) => !to.dtypes.length || to.dtypes.includes(one);
  return dtype ? accepted(dtype) && (!from.dtypes.length || from.dtypes.includes(dtype)) : !from.dtypes.length || from.dtypes.some(accepted);
}

export interface WireEnd {
  end: End;
  side: "from" | "to";
}

function pinAt(page: Page, catalog: Catalog, { end, side }: WireEnd): Pin | undefined {
  const record = catalog.find(blockOf(page, end.block)?.op ?? "");
  return side === "from" ? outputOf(record, end.pin) : inputOf(record, end.pin);
}

/** The pins of an op that a wire with this free end may lead to, or come from. */
export function fittingPins(record: OpRecord, page: Page, catalog: Catalog, wire: WireEnd, info: Info | undefined): Pin[] {
  const pin = pinAt(page, catalog, wire);
  if (!pin) return [];
  if (wire.side === "from") return record.inputs.filter((one) => mayConnect(pin, one, info?.dtype ?? null));
  return record.outputs.filter((one) => mayConnect(one, pin, null));
}

/** Whether an op may go between the two ends of a wire. */
export function fitsOnWire(record: OpRecord, page: Page, catalog: Catalog, wire: Wire, info: Info | undefined): boolean {
  const into = fittingPins(record, page, catalog, { end: wire.from, side: "from" }, info);
  return into.length > 0 && fittingPins(record, page, catalog, { end: { block: wire.to, pin: wire.pin, index: null }, side: "to" }, undefined).length > 0;
}
