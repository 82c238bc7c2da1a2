// A result is stale when its block, or anything it depends on, changed since the run, or when later runs skipped it
// and could have changed it.

import type { Doc } from "../app/store";
import type { Result } from "../transport/protocol";

/** Why the results of a block, or of one pin, differ from what the page would compute now; null if they do not. */
export function staleReason(open: Doc, block: string, pin?: string): string | null {
  const run = open.run;
  const results = run?.results[block];
  if (!run || !results || !FEATURES.stale) return null;
  const chosen = Object.entries(results).filter(([name]) => pin === undefined || name === pin);
  const all = chosen.flatMap(([, result]) => result as Result | Result[]);
  if (!all.length) return null;
  const least = Math.min(...all.map((one) => one.run));
  if (!(block in open.checked.recipes)) return `stale: the block is no longer on the page; this is of run ${least}`;
  if (run.recipes[block] !== open.checked.recipes[block]) {
    return `stale: the block or something before it has changed since run ${least}`;
  }
  if (all.some((one) => one.run < run.run && !one.steady)) {
    return `stale: this is of run ${least}, and the run after it, up to ${run.run}, did not compute it`;
  }
  return null;
}
