// Every edit is a function from page to page. Pages are never changed in place: the history keeps the old ones.

import type { Block, Json, Note, Page } from "../transport/protocol";
import type { End, Wire } from "./page";
import { endText, endsAt, freeId, idsOf, notesOf, parseEnd } from "./page";

export type Place = [number, number];

function withBlock(page: Page, id: string, change: (block: Block) => Block): Page {
  return { ...page, blocks: page.blocks.map((block) => (block.id === id ? change(block) : block)) };
}

/** An object without an entry; undefined if it is then empty, so that files stay short. */
function without<T>(of: Record<string, T> | undefined, key: string): Record<string, T> | undefined {
  if (!of || !(key in of)) return of;
  const { [key]: _, ...rest } = of;
  return Object.keys(rest).length ? rest : undefined;
}

/** A block without its undefined entries. */
function tidy(block: { [K in keyof Block]: Block[K] | undefined }): Block {
  const defined = Object.entries(block).filter(([, value]) => value !== undefined);
  return Object.fromEntries(defined) as unknown as Block;
}

export function addBlock(page: Page, op: string, wanted: string, at: Place): [Page, string] {
  const id = freeId(idsOf(page), wanted);
  return [{ ...page, blocks: [...page.blocks, { id, op, at }] }, id];
}

/** Replace the blocks whose ids are known, and add the others. */
export function putBlocks(page: Page, blocks: Block[]): Page {
  const changed = new Map(blocks.map((block) => [block.id, block]));
  const known = new Set(page.blocks.map((block) => block.id));
  return { ...page, blocks: [...page.blocks.map((block) => changed.get(block.id) ?? block), ...blocks.filter((block) => !known.has(block.id))] };
}

/** Add a wire: appended on a list pin, replacing the wire or value of any other pin. */
export function connect(page: Page, from: End, to: string, pin: string, many: boolean): Page {
  return withBlock(page, to, (block) => {
    const before = endsAt(block, pin);
    const text = endText(from);
    if (many && before.includes(text)) return block;
    const ends = many ? [...before, text] : [text];
    return tidy({ ...block, in: { ...block.in, [pin]: ends.length === 1 ? ends[0]! : ends }, values: without(block.values, pin) });
  });
}

export function disconnect(page: Page, wire: Pick<Wire, "to" | "pin" | "place">): Page {
  return withBlock(page, wire.to, (block) => {
    const left = endsAt(block, wire.pin).filter((_, place) => place !== wire.place);
    return setEnds(block, wire.pin, left);
  });
}

function setEnds(block: Block, pin: string, ends: string[]): Block {
  const others = without(block.in, pin);
  if (!ends.length) {
    const hidden = block.hidden?.filter((name) => name !== pin);
    return tidy({ ...block, in: others, hidden: hidden?.length ? hidden : undefined });
  }
  return tidy({ ...block, in: { ...block.in, [pin]: ends.length === 1 ? ends[0]! : ends } });
}

/** Move a wire of a list pin to another place. */
export function reorder(page: Page, to: string, pin: string, from: number, place: number): Page {
  return withBlock(page, to, (block) => {
    const ends = [...endsAt(block, pin)];
    const [moved] = ends.splice(from, 1);
    if (moved === undefined) return block;
    ends.splice(place, 0, moved);
    return setEnds(block, pin, ends);
  });
}

export function setValue(page: Page, id: string, pin: string, value: Json | undefined): Page {
  return withBlock(page, id, (block) => {
    if (value === undefined) return tidy({ ...block, values: without(block.values, pin) });
    return tidy({ ...setEnds(block, pin, []), values: { ...block.values, [pin]: value } });
  });
}

export function setAttr(page: Page, id: string, attr: string, value: Json | undefined): Page {
  return withBlock(page, id, (block) =>
    tidy({ ...block, attrs: value === undefined ? without(block.attrs, attr) : { ...block.attrs, [attr]: value } }),
  );
}

/** Copy typed values and attributes from another block, for the pins and attributes that both have. */
export function pasteParameters(page: Page, id: string, from: Block, pins: readonly string[], attrs: readonly string[]): Page {
  let next = page;
  for (const [pin, value] of Object.entries(from.values ?? {})) if (pins.includes(pin)) next = setValue(next, id, pin, value);
  for (const [attr, value] of Object.entries(from.attrs ?? {})) if (attrs.includes(attr)) next = setAttr(next, id, attr, value);
  return next;
}

export function setHidden(page: Page, id: string, pin: string, hidden: boolean): Page {
  return withBlock(page, id, (block) => {
    const rest = (block.hidden ?? []).filter((name) => name !== pin);
    const next = hidden ? [...rest, pin] : rest;
    return tidy({ ...block, hidden: next.length ? next : undefined });
  });
}

export function rename(page: Page, id: string, name: string): Page {
  const renamed = (text: string) => {
    const end = parseEnd(text);
    return end.block === id ? endText({ ...end, block: name }) : text;
  };
  return mapEnds(
    { ...page, blocks: page.blocks.map((block) => (block.id === id ? { ...block, id: name } : block)) },
    renamed,
  );
}

/** Map every wire's end; unchanged blocks stay the same objects. */
function mapEnds(page: Page, change: (end: string) => string | null): Page {
  const blocks = page.blocks.map((block) => {
    let next = block;
    for (const pin of Object.keys(block.in ?? {})) {
      const before = endsAt(block, pin);
      const after = before.map(change);
      if (after.some((end, k) => end !== before[k])) next = setEnds(next, pin, after.filter((end) => end !== null));
    }
    return next;
  });
  return { ...page, blocks };
}

/** Remove blocks with their wires, and notes by number. */
export function remove(page: Page, ids: ReadonlySet<string>, notes: ReadonlySet<number> = new Set()): Page {
  const left: Page = { ...page, blocks: page.blocks.filter((block) => !ids.has(block.id)) };
  const cut = mapEnds(left, (end) => (ids.has(parseEnd(end).block) ? null : end));
  return notes.size ? setNotes(cut, notesOf(page).filter((_, k) => !notes.has(k))) : cut;
}

export function move(page: Page, places: ReadonlyMap<string, Place>): Page {
  const blocks = page.blocks.map((block) => {
    const at = places.get(block.id);
    return at && (block.at?.[0] !== at[0] || block.at[1] !== at[1]) ? { ...block, at } : block;
  });
  return { ...page, blocks };
}

function setNotes(page: Page, notes: Note[]): Page {
  if (notes.length) return { ...page, notes };
  const { notes: _, ...rest } = page;
  return rest;
}

export function addNote(page: Page, note: Note): Page {
  return setNotes(page, [...notesOf(page), note]);
}

export function changeNote(page: Page, k: number, change: Partial<Note>): Page {
  return setNotes(page, notesOf(page).map((note, i) => (i === k ? { ...note, ...change } : note)));
}
