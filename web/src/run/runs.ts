// Runs of the active page: once, n steps, at a rate, continuously; pause, resume, stop, reset, snapshots.

import { changeDoc, doc, get, server, useStudio } from "../app/store";
import { attempt, notify } from "../messages/messages";
import { saveAfterParsing } from "../project/autosave";
import type { Mode, RunState, Snapshot } from "../transport/protocol";

async function requestRun(verb: string, args: Record<string, unknown> = {}, name = get().active): Promise<RunState | null> {
  const open = doc(name);
  if (!open || !FEATURES.run) return null;
  const state = await attempt(() => server().request<RunState>(verb, { name: open.name, ...args }));
  if (state) applyRunState(open.name, state);
  return state;
}

/** Replies and events may arrive out of order: the larger serial is the newer state. */
export function applyRunState(name: string, state: RunState): void {
  const known = doc(name)?.run;
  if ((known?.serial ?? 0) <= state.serial) changeDoc(name, { run: state });
}

// Replies and events report the same changes; each is shown once.
useStudio.subscribe((state, before) => {
  if (state.docs === before.docs) return;
  for (const [name, { run }] of Object.entries(state.docs)) {
    const old = before.docs[name]?.run;
    if (!run || run === old || !before.docs[name]) continue;
    reportCarried(name, run, old);
    reportFailure(name, run, old);
  }
});

/** After an edit or a change of engine, unchanged Variables keep their values. */
function reportCarried(name: string, run: RunState, old: RunState | null | undefined): void {
  if (!run.carried.length || (old && old.engine === run.engine && (old.revision === run.revision || isSame(old.recipes, run.recipes)))) return;
  const one = run.carried.length === 1;
  const goes = one ? "goes on with its value" : "go on with their values";
  notify("info", `Variable${one ? "" : "s"} ${run.carried.join(", ")} ${goes}.`, { page: name });
}

function isSame(a: Record<string, string>, b: Record<string, string>): boolean {
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => a[key] === b[key]);
}

/** `seconds` distinguishes a new failure from the previous one. */
function reportFailure(name: string, run: RunState, old: RunState | null | undefined): void {
  if (run.phase !== "failed" || !run.error) return;
  if (old?.phase === "failed" && old.seconds === run.seconds && old.error?.text === run.error.text) return;
  notify("error", run.error.message, { block: run.error.block, pin: run.error.pin, page: name });
}

export async function run(mode: Mode, sessions?: string[]): Promise<void> {
  const open = doc();
  if (!open) return;
  if (!(await saveAfterParsing(open.name))) {
    notify("error", "The page could not be saved, so it was not run.");
    return;
  }
  const { steps, rate, engine } = get().runMode;
  await requestRun("run", {
    mode,
    engine,
    ...(sessions ? { sessions } : {}),
    ...(mode === "steps" ? { steps } : {}),
    ...(mode === "rate" ? { rate } : {}),
  }, open.name);
}

export const pause = () => requestRun("pause");
export const resume = () => requestRun("resume");
export const stop = () => requestRun("stop");
export const reset = () => requestRun("reset");

export async function snapshots(): Promise<Snapshot[]> {
  const open = doc();
  const reply = open && (await attempt(() => server().request<{ snapshots: Snapshot[] }>("snapshots", { name: open.name })));
  return reply?.snapshots ?? [];
}

export async function snapshot(label = ""): Promise<void> {
  const open = doc();
  if (!open || !FEATURES.snapshots) return;
  const reply = await attempt(() => server().request("snapshot", { name: open.name, label }));
  if (reply) notify("info", `The Variables of ${open.name} are kept as they are now.`);
}

export const restore = (id: string) => requestRun("restore", { snapshot: id });
