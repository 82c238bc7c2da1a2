// Reading a page: blocks, wires and their ends, free names. `edit.ts` changes pages.

import type { Block, Note, Page } from "../transport/protocol";

/** Where a wire begins: `block.pin`, or `block.pin[2]` for one entry of a list. */
export interface End {
  block: string;
  pin: string;
  index: number | null;
}

/** One wire: from an output end to the k-th place of an input pin. */
export interface Wire {
  from: End;
  to: string;
  pin: string;
  place: number;
  hidden: boolean;
}

export const EMPTY: Page = { format: "rowgrad-page", version: 1, name: "page", blocks: [] };

const END = /^(.+)\.(\w+)(?:\[(\d+)\])?$/s;
const NAME = /^[A-Za-z0-9_.][A-Za-z0-9_.\\/>-]*$/;

export function parseEnd(text: string): End {
  const found = END.exec(text);
  if (!found) throw new Error(`${text} is not an end of a wire`);
  return { block: found[1]!, pin: found[2]!, index: found[3] === undefined ? null : Number(found[3]) };
}

export function endText({ block, pin, index }: End): string {
  return `${block}.${entryText(pin, index)}`;
}

/** `pin`, or `pin[2]` for one entry of a list. */
export function entryText(pin: string, index: number | null): string {
  return index === null ? pin : `${pin}[${index}]`;
}

/** `block.pin`, or `block` for something about the block itself. */
export function pinPath(block: string, pin: string | null): string {
  return pin ? `${block}.${pin}` : block;
}

/** The ends wired to an input pin, in order. */
export function endsAt(block: Block, pin: string): string[] {
  const ends = block.in?.[pin];
  return ends === undefined ? [] : typeof ends === "string" ? [ends] : ends;
}

const indexes = new WeakMap<Page, Map<string, Block>>();

/** A block by its id; pages never change, so each is indexed once. */
export function blockOf(page: Page, id: string): Block | undefined {
  let index = indexes.get(page);
  if (!index) {
    index = new Map(page.blocks.map((block) => [block.id, block]));
    indexes.set(page, index);
  }
  return index.get(id);
}

/** What to call a block in lists: imported files have ids for names. Of `ID_COST` that is COST, and of a number such as
 *  `ID_1eRwic0` its op, with the id if several blocks would be called so. */
export function blockName(page: Page, id: string): string {
  const given = importedName(id);
  if (given || !isNumbered(id)) return given ?? id;
  const op = blockOf(page, id)?.op;
  const alike = page.blocks.filter((block) => block.op === op && isNumbered(block.id));
  return op === undefined ? id : alike.length > 1 ? `${op} ${id}` : op;
}

/** The name that a user gave a block of an imported file. */
export function importedName(id: string): string | undefined {
  return /^ID_([A-Z][A-Z_]*\d*)$/.exec(id)?.[1];
}

/** Whether the old tool made up the id of a block. */
export function isNumbered(id: string): boolean {
  return id.startsWith("ID_") && !importedName(id);
}

export function notesOf(page: Page): Note[] {
  return page.notes ?? [];
}

export function wiresOf(page: Page): Wire[] {
  const wires: Wire[] = [];
  for (const block of page.blocks) {
    for (const pin of Object.keys(block.in ?? {})) {
      const hidden = block.hidden?.includes(pin) ?? false;
      endsAt(block, pin).forEach((end, place) => {
        wires.push({ from: parseEnd(end), to: block.id, pin, place, hidden });
      });
    }
  }
  return wires;
}

const begun = new WeakMap<Page, Map<string, Record<string, number>>>();

/** Output pins of a block that wires start from, with how many list entries they name (which need not exist any more);
 *  as JSON text, which is cheap to compare. */
export function wiredOutputs(page: Page, id: string): string {
  let found = begun.get(page);
  if (!found) {
    found = new Map();
    for (const { from } of wiresOf(page)) {
      const pins = found.get(from.block) ?? {};
      pins[from.pin] = Math.max(pins[from.pin] ?? 0, from.index === null ? 0 : from.index + 1);
      found.set(from.block, pins);
    }
    begun.set(page, found);
  }
  return JSON.stringify(found.get(id) ?? {});
}

/** The wanted id, or an unused one like it. */
export function freeId(used: ReadonlySet<string>, wanted: string): string {
  if (!used.has(wanted)) return wanted;
  const stem = wanted.replace(/_\d+$/, "");
  for (let k = 2; ; k++) if (!used.has(`${stem}_${k}`)) return `${stem}_${k}`;
}

export function idsOf(page: Page): Set<string> {
  return new Set(page.blocks.map((block) => block.id));
}

/** Why a block cannot have this name, or null. The server validates too; this is shown while typing. */
export function nameFault(page: Page, id: string, name: string): string | null {
  if (!NAME.test(name)) return "use letters a–z, digits and _ . \\ / > - only, and begin with a letter, a digit, _ or a dot";
  if (name !== id && idsOf(page).has(name)) return `another block is called ${name}`;
  return null;
}

/** Whether two pages are equal up to the order of their entries and their name, which is the file's. */
export function samePage(a: Page, b: Page): boolean {
  return a === b || canonical(a) === canonical(b);
}

function canonical(page: Page): string {
  const blocks = page.blocks.map((block) => {
    const wires = Object.keys(block.in ?? {}).map((pin) => [pin, endsAt(block, pin)] as const);
    return { ...block, in: Object.fromEntries(wires), values: block.values ?? {}, attrs: block.attrs ?? {}, hidden: [...(block.hidden ?? [])].sort() };
  });
  return JSON.stringify({ blocks, notes: notesOf(page) }, (_, value: unknown) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
    return Object.fromEntries(Object.entries(value).sort(([x], [y]) => (x < y ? -1 : 1)));
  });
}
