// Runs of the active page: once, n steps, at a rate, continuously; pause, resume, stop, reset, snapshots.

import type { Doc } from "../app/store";
import { changeDoc, doc, get, server, set, useStudio } from "../app/store";
import { attempt, notify, settle } from "../messages/messages";
import { saveAfterParsing } from "../project/autosave";
import type { Mode, Question, RunState, Snapshot } from "../transport/protocol";

async function requestRun(verb: string, args: Record<string, unknown> = {}, name = get().active): Promise<RunState | Asked | null> {
  const open = doc(name);
  if (!open || !FEATURES.run) return null;
  settle(open.name, "run"); // what the last run reported
  const reply = await attempt(() => server().request<RunState | Asked>(verb, { name: open.name, ...args }), { page: open.name, about: "run" });
  if (reply && !("ask" in reply)) applyRunState(open.name, reply);
  return reply;
}

/** Instead of a state: a run that would change Variables although no session block says so. */
type Asked = { ask: Question };

/** Replies and events may arrive out of order: the larger serial is the newer state. */
export function applyRunState(name: string, state: RunState): void {
  const known = doc(name)?.run;
  if ((known?.serial ?? 0) <= state.serial) changeDoc(name, { run: state });
}

// Replies and events report the same changes; each is shown once.
useStudio.subscribe((state, before) => {
  if (state.docs === before.docs) return;
  for (const [name, open] of Object.entries(state.docs)) {
    const { run } = open;
    const old = before.docs[name]?.run;
    if (open.checked !== before.docs[name]?.checked && isFailureEdited(open)) settle(name, "run");
    if (!run || run === old || !before.docs[name]) continue;
    if (run.phase !== "failed" && (run.run > (old?.run ?? 0) || run.phase === "idle")) settle(name, "run");
    reportCarried(name, run, old);
    reportFailure(name, run, old);
    reportLeftOut(name, run, old);
  }
});

/** Whether the block that the last run failed at computes something else now. */
export function isFailureEdited({ run, checked }: Doc): boolean {
  const at = run?.error?.block;
  return run?.phase === "failed" && at != null && run.recipes[at] !== checked.recipes[at];
}

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
  const { block, pin, fixes } = run.error;
  notify("error", run.error.message, { block, pin, page: name, about: "run", fixes });
}

/** Faulty blocks do not keep a run without a session block from computing the others. */
function reportLeftOut(name: string, run: RunState, old: RunState | null | undefined): void {
  const left = run.left_out ?? [];
  if (!left.length || run.phase === "idle" || (old?.revision === run.revision && old.left_out?.length === left.length)) return;
  const { errors } = doc(name)!.checked;
  const first = left.find((id) => errors[id]);
  const others = left.length - 1;
  const text = `${first ?? left[0]}${others ? ` and ${others} more` : ""} could not be computed${first ? `: ${errors[first]!.message}` : ""}`;
  notify("warning", text, { page: name, block: first, pin: first ? errors[first]!.pin : null, about: "run", fixes: first ? errors[first]!.fixes : [] });
}

/** Run the page; `change` says that the user agreed to the change of Variables without a session block. */
export async function run(mode: Mode, sessions?: string[], change = false): Promise<void> {
  const open = doc();
  if (!open) return;
  set(({ toasts }) => ({ toasts: toasts.filter(({ level }) => level !== "info") })); // they would cover the results
  if (!(await saveAfterParsing(open.name))) {
    notify("error", "The page could not be saved, so it was not run.", { page: open.name, about: "save" });
    return;
  }
  const { steps, rate, engine } = get().runMode;
  const reply = await requestRun("run", {
    mode,
    engine,
    ...(sessions ? { sessions } : {}),
    ...(mode === "steps" ? { steps } : {}),
    ...(mode === "rate" ? { rate } : {}),
    ...(change ? { change } : {}),
  }, open.name);
  if (reply && "ask" in reply) set({ dialog: { kind: "ask-run", page: open.name, mode, question: reply.ask } });
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
  if (reply) notify("info", `The Variables of ${open.name} are saved in a snapshot.`);
}

export const restore = (id: string) => requestRun("restore", { snapshot: id });
