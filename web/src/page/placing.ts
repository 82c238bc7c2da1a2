// New blocks with their wires: at the free end of a wire, and in the middle of one. The server says which pins take them.

import { doc, get, server } from "../app/store";
import { snap } from "../canvas/layout";
import { attempt, notify } from "../messages/messages";
import type { Page } from "../transport/protocol";
import type { WireEnd } from "../wires/fits";
import { change, focusBlock, select } from "./actions";
import * as edit from "./edit";
import type { Wire } from "./page";
import { blockOf, endText, endsAt, pinPath } from "./page";

type Takes = Record<string, string | null>;

async function takesOf(page: Page, { end, side }: WireEnd): Promise<Takes | null> {
  if (!FEATURES.wires) return null;
  const args = side === "from" ? { page, from: endText(end) } : { page, to: pinPath(end.block, end.pin) };
  return (await attempt(() => server().request<{ takes: Takes }>("candidates", args)))?.takes ?? null;
}

/** The first pin of a block that takes a wire. */
function firstPin(takes: Takes, block: string, pins: readonly string[]): string | undefined {
  return pins.find((pin) => takes[pinPath(block, pin)] === null);
}

/** Add a block and the wire that was dropped; without a pin that takes it, the block alone. */
export async function placeAtWire(op: string, at: edit.Place, wire: WireEnd): Promise<void> {
  const open = doc();
  const record = get().catalog.find(op);
  if (!open || !record) return;
  const [page, id] = edit.addBlock(open.page, record.name, record.snake_name, snap(at));
  const takes = await takesOf(page, wire);
  const pin = takes && firstPin(takes, id, (wire.side === "from" ? record.inputs : record.outputs).map((one) => one.name));
  let made = page;
  if (pin && wire.side === "from") made = edit.connect(page, wire.end, id, pin, isMany(record.inputs, pin));
  if (pin && wire.side === "to") made = edit.connect(page, { block: id, pin, index: null }, wire.end.block, wire.end.pin, isManyInput(page, wire.end.block, wire.end.pin));
  if (!finish(open.name, open.page, `add ${record.name}`, made, id)) return;
  if (!pin) notify("warning", `${record.name} has no pin that takes this wire.`, { block: id });
}

/** Put a block into a wire: the wire leads to it, and its output to where the wire led. */
export async function insertOnWire(op: string, wire: Wire, at: edit.Place): Promise<boolean> {
  const open = doc();
  const record = get().catalog.find(op);
  if (!open || !record) return false;
  const [page, id] = edit.addBlock(open.page, record.name, record.snake_name, snap(at));
  const takes = await takesOf(page, { end: wire.from, side: "from" });
  const into = takes && firstPin(takes, id, record.inputs.map((one) => one.name));
  if (!into) {
    notify("error", `${record.name} takes no wire from ${endText(wire.from)}.`, { block: wire.to, pin: wire.pin });
    return false;
  }
  const many = isManyInput(page, wire.to, wire.pin);
  const led = edit.disconnect(edit.connect(page, wire.from, id, into, isMany(record.inputs, into)), wire);
  const back = await takesOf(led, { end: { block: wire.to, pin: wire.pin, index: null }, side: "to" });
  const out = back && firstPin(back, id, record.outputs.map((one) => one.name));
  if (!out) {
    notify("error", `${pinPath(wire.to, wire.pin)} takes no output of ${record.name}.`, { block: wire.to, pin: wire.pin });
    return false;
  }
  let made = edit.connect(led, { block: id, pin: out, index: null }, wire.to, wire.pin, many);
  const last = endsAt(blockOf(made, wire.to)!, wire.pin).length - 1;
  if (many) made = edit.reorder(made, wire.to, wire.pin, last, wire.place);
  return finish(open.name, open.page, `insert ${record.name}`, made, id);
}

/** Make the edit one step of the history, unless the page changed while the server answered. */
function finish(name: string, before: Page, label: string, made: Page, id: string): boolean {
  if (doc(name)?.page !== before) {
    notify("info", "The page changed meanwhile; please do that again.");
    return false;
  }
  focusBlock(id);
  change(label, () => made, false, name);
  select([id]);
  return true;
}

function isMany(pins: readonly { name: string; many: boolean }[], name: string): boolean {
  return pins.find((pin) => pin.name === name)?.many ?? false;
}

function isManyInput(page: Page, block: string, pin: string): boolean {
  return isMany(get().catalog.find(blockOf(page, block)?.op ?? "")?.inputs ?? [], pin);
}
