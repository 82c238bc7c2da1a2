// A result is stale when the block, or anything it depends on, has changed since the run, or a later run left it out.

import { has } from "./features";
import type { StudioState } from "./store";

export function isStale(state: StudioState, block: string): boolean {
  const open = state.docs[state.active ?? ""];
  const run = open?.run;
  if (!open || !run?.results[block] || !has("stale")) return false;
  if (run.recipes[block] !== open.checked.recipes[block]) return true;
  return Object.values(run.results[block]).some((result) => (Array.isArray(result) ? result : [result]).some((one) => one.run < run.run));
}
