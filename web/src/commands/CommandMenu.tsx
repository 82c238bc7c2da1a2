// The command menu (Ctrl-K): blocks to place, blocks on the page, commands, pages.

import { doc, get } from "../app/store";
import { place, showBlock } from "../page/actions";
import { search } from "../palette/catalog";
import { familyOf } from "../palette/families";
import type { OpRecord } from "../transport/protocol";
import { DialogFrame, closeDialog } from "../ui/DialogFrame";
import { filterOf } from "../ui/filter";
import type { Entry } from "../ui/SearchList";
import { SearchList } from "../ui/SearchList";
import { COMMANDS, isReady, pageCommands } from "./commands";
import { keysText } from "./keyboard";

function entries(typed: string): Entry[] {
  const fits = filterOf(typed);
  const commands = [...COMMANDS, ...pageCommands()].filter((command) => isReady(command) && fits(`${command.title} ${command.group}`));
  const there = typed.trim() && FEATURES.search ? (doc()?.page.blocks.filter((block) => fits(`${block.id} ${block.op}`)).slice(0, 50) ?? []) : [];
  const blocks = typed.trim() && doc() ? search(get().catalog, typed, 40) : [];
  // The op that was typed in full is what is meant, before commands that contain the word.
  const put = blocks.map((record) => ({ key: `put ${record.name}`, title: `Place ${record.name}`, note: record.category, family: familyOf(record).name, exact: isNameOf(record, typed) }));
  return [
    ...put.filter((one) => one.exact),
    ...there.map((block) => ({ key: `go ${block.id}`, title: `Go to ${block.id}`, note: block.op })),
    ...commands.map((command) => ({ key: `do ${command.id}`, title: command.title, note: keysText(command.keys) || command.group })),
    ...put.filter((one) => !one.exact),
  ];
}

function isNameOf(record: OpRecord, typed: string): boolean {
  const name = typed.trim().toLowerCase();
  return [record.name, record.snake_name, ...record.aliases].some((one) => one.toLowerCase() === name);
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
      <SearchList label="Blocks and commands" entries={entries} take={take} />
    </DialogFrame>
  );
}
