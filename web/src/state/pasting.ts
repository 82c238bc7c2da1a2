// Blocks copied, cut, pasted and duplicated; and parameters of one block for others.

import { copyText, paste, readText } from "../model/clipboard";
import * as edit from "../model/edit";
import { blockOf, notesOf } from "../model/page";
import { change, chosenBlocks, select, view } from "./editing";
import { say } from "./messages";
import { doc, front, get } from "./store";

/** What was copied last in this window, for browsers that do not let a page read the clipboard. */
export const held = { text: "" };

export async function copy(): Promise<void> {
  const open = doc()!;
  const text = copyText(open.page, open.blocks, open.notes);
  held.text = text;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without leave to write the clipboard, the window's own copy still serves.
  }
}

/** Blocks of such a text onto the page: in the middle of what is seen, or at a place, and never exactly over others. */
export function pasteText(text: string, wanted = view.middle()): boolean {
  const open = front();
  const found = readText(text);
  if (!open || !found || !FEATURES.copyPaste) return false;
  const taken = new Set(open.page.blocks.map((block) => String(block.at)));
  let made: ReturnType<typeof paste>;
  let [x, y] = wanted;
  do {
    [x, y] = [x + 20, y + 20];
    made = paste(open.page, found, [x, y]);
  } while (made.page.blocks.some((block) => made.ids.has(block.id) && taken.has(String(block.at))));
  const n = found.blocks.length;
  change(`paste ${n === 1 ? found.blocks[0]!.id : n ? `${n} blocks` : "notes"}`, () => made.page);
  select(made.ids, made.notes);
  return true;
}

export function duplicate(): void {
  const { page, blocks, notes } = doc()!;
  const text = copyText(page, blocks, notes);
  const chosen = [...chosenBlocks(), ...notesOf(page).filter((_, k) => notes.has(k))].map(({ at }): edit.Place => at ?? [0, 0]);
  pasteText(text, [Math.min(...chosen.map(([x]) => x)), Math.min(...chosen.map(([, y]) => y))]);
}

export function copyParameters(): void {
  held.text = copyText(doc()!.page, doc()!.blocks, new Set());
  say("info", `The parameters of ${[...doc()!.blocks][0]} can be pasted onto other blocks.`);
}

export function pasteParameters(): void {
  const from = readText(held.text)?.blocks[0];
  if (!from) return;
  const open = doc()!;
  change(`paste parameters of ${from.id}`, (page) => {
    let next = page;
    for (const id of open.blocks) {
      const found = get().catalog.find(blockOf(page, id)?.op ?? "");
      if (found) next = edit.pasteParameters(next, id, from, found.inputs.map((pin) => pin.name), Object.keys(found.attrs));
    }
    return next;
  });
}
