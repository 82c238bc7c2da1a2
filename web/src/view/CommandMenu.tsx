// Ctrl-K: blocks to place, blocks on the page to go to, commands, pages.

import { search } from "../model/catalog";
import { COMMANDS, isReady, pageCommands } from "../state/commands";
import { place, showBlock } from "../state/editing";
import { doc, get } from "../state/store";
import { keysText } from "./CommandButton";
import { DialogFrame, closeDialog } from "./DialogFrame";
import type { Entry } from "./Listing";
import { Listing } from "./Listing";

function entries(typed: string): Entry[] {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (text: string) => words.every((word) => text.toLowerCase().includes(word));
  const commands = [...COMMANDS, ...pageCommands()].filter((command) => isReady(command) && fits(`${command.title} ${command.group}`));
  const there = words.length && FEATURES.search ? (doc()?.page.blocks.filter((block) => fits(`${block.id} ${block.op}`)).slice(0, 50) ?? []) : [];
  const blocks = words.length && doc() ? search(get().catalog, typed, 40) : [];
  return [
    ...there.map((block) => ({ key: `go ${block.id}`, title: `Go to ${block.id}`, note: block.op })),
    ...commands.map((command) => ({ key: `do ${command.id}`, title: command.title, note: keysText(command.keys) || command.group })),
    ...blocks.map((record) => ({ key: `put ${record.name}`, title: `Place ${record.name}`, note: record.category })),
  ];
}

function take(key: string): void {
  const cut = key.indexOf(" ");
  const [what, name] = [key.slice(0, cut), key.slice(cut + 1)];
  closeDialog();
  if (what === "go") showBlock(name);
  else if (what === "put") place(name);
  else void [...COMMANDS, ...pageCommands()].find((command) => command.id === name)?.run();
}

export function CommandMenu() {
  return (
    <DialogFrame title="Search">
      <Listing label="Blocks and commands" entries={entries} take={take} />
    </DialogFrame>
  );
}
