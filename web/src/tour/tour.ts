// The tour's steps: when each is done, what it points at, and how the page does it for the user.

import type { Doc } from "../app/store";
import { doc, get, set } from "../app/store";
import { perform as performCommand } from "../commands/commands";
import { place } from "../page/actions";
import { newPage } from "../project/pages";
import { run } from "../run/runs";
import type { Block, Tour } from "../transport/protocol";
import { enterLiteral } from "../values/literals";

export type Step = Tour["steps"][number];

export function tourBlock(open: Doc | null): Block | undefined {
  const op = get().hello?.tour.op;
  return open?.page.blocks.find((block) => block.op === op);
}

/** Whether the page shows that a step is done. */
export function isDone(step: Step, open: Doc | null): boolean {
  const block = tourBlock(open);
  if (!block) return false;
  if (step.kind === "place") return true;
  if (step.kind === "type") return Object.keys(step.values ?? {}).every((pin) => block.values?.[pin] !== undefined || block.in?.[pin] !== undefined);
  return step.kind === "run" && Object.keys(open?.run?.results[block.id] ?? {}).length > 0;
}

/** A selector of what a step is about. */
export function targetOf(step: Step, open: Doc | null): string | null {
  const block = tourBlock(open);
  if (step.kind === "place") return "#palette-search";
  if (step.kind === "run") return '[data-command="run"]';
  if (!block) return null;
  const id = CSS.escape(block.id);
  if (step.kind === "read") return `[data-block="${id}"]`;
  const pin = Object.keys(step.values ?? {}).find((name) => block.values?.[name] === undefined);
  return pin ? `[data-block="${id}"] [data-pin="${CSS.escape(pin)}"]` : null;
}

/** Do a step in place of the user. */
export async function perform(step: Step, op: string): Promise<void> {
  if (step.kind === "place") place(op);
  else if (step.kind === "run") await run("once");
  else if (step.kind === "read") set({ bottom: "trace", bottomOpen: true });
  else {
    for (const [pin, text] of Object.entries(step.values ?? {})) {
      const block = tourBlock(doc());
      if (block && block.values?.[pin] === undefined) await enterLiteral(block, pin, text, "");
    }
  }
}

/** Begin on an empty page of its own. */
export async function beginTour(): Promise<void> {
  if (!FEATURES.tour || !(await newPage(undefined, freePageName("first_gradient")))) return;
  set({ tour: 0 });
  performCommand("find-block"); // what is typed first is the name of the block, not keys of commands
}

function freePageName(wanted: string): string {
  const used = new Set(get().pages.map((page) => page.name));
  let name = wanted;
  for (let k = 2; used.has(name); k++) name = `${wanted}_${k}`;
  return name;
}
