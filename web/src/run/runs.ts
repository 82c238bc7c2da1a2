// Runs of the active page: once, n steps, at a rate, continuously; pause, resume, stop, reset, snapshots.

import { changeDoc, doc, get, server, useStudio } from "../app/store";
import { attempt, say } from "../messages/messages";
import { flushWhole } from "../project/autosave";
import type { Mode, RunState, Snapshot } from "../transport/protocol";

async function tell(verb: string, given: Record<string, unknown> = {}, name = get().active): Promise<RunState | null> {
  const open = doc(name);
  if (!open || !FEATURES.run) return null;
  const state = await attempt(() => server().ask<RunState>(verb, { name: open.name, ...given }));
  if (state) takeRun(open.name, state);
  return state;
}

/** Replies and events overtake each other: what was made later knows more. */
export function takeRun(name: string, state: RunState): void {
  const known = doc(name)?.run;
  if ((known?.serial ?? 0) <= state.serial) changeDoc(name, { run: state });
}

// Replies and events both tell of what happened; it is said once.
useStudio.subscribe((state, before) => {
  if (state.docs === before.docs) return;
  for (const [name, { run }] of Object.entries(state.docs)) {
    const old = before.docs[name]?.run;
    if (!run || run === old || !before.docs[name]) continue;
    sayCarried(name, run, old);
    sayFailure(name, run, old);
  }
});

/** A page that was changed, or has another engine, goes on with those Variables that are what they were. */
function sayCarried(name: string, run: RunState, old: RunState | null | undefined): void {
  if (!run.carried.length || (old && old.engine === run.engine && (old.revision === run.revision || isSame(old.recipes, run.recipes)))) return;
  const one = run.carried.length === 1;
  const goes = one ? "goes on with its value" : "go on with their values";
  say("info", `Variable${one ? "" : "s"} ${run.carried.join(", ")} ${goes}.`, { page: name });
}

function isSame(a: Record<string, string>, b: Record<string, string>): boolean {
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => a[key] === b[key]);
}

/** Its seconds tell a failure from the one before. */
function sayFailure(name: string, run: RunState, old: RunState | null | undefined): void {
  if (run.phase !== "failed" || !run.error) return;
  if (old?.phase === "failed" && old.seconds === run.seconds && old.error?.text === run.error.text) return;
  say("error", run.error.message, { block: run.error.block, pin: run.error.pin, page: name });
}

export async function run(mode: Mode, sessions?: string[]): Promise<void> {
  const open = doc();
  if (!open) return;
  if (!(await flushWhole(open.name))) {
    say("error", "The page could not be saved, so it was not run.");
    return;
  }
  const { steps, rate, engine } = get().runMode;
  await tell("run", {
    mode,
    engine,
    ...(sessions ? { sessions } : {}),
    ...(mode === "steps" ? { steps } : {}),
    ...(mode === "rate" ? { rate } : {}),
  }, open.name);
}

export const pause = () => tell("pause");
export const resume = () => tell("resume");
export const stop = () => tell("stop");
export const reset = () => tell("reset");

export async function snapshots(): Promise<Snapshot[]> {
  const open = doc();
  const reply = open && (await attempt(() => server().ask<{ snapshots: Snapshot[] }>("snapshots", { name: open.name })));
  return reply?.snapshots ?? [];
}

export async function snapshot(label = ""): Promise<void> {
  const open = doc();
  if (!open || !FEATURES.snapshots) return;
  const reply = await attempt(() => server().ask("snapshot", { name: open.name, label }));
  if (reply) say("info", `The Variables of ${open.name} are kept as they are now.`);
}

export const restore = (id: string) => tell("restore", { snapshot: id });
