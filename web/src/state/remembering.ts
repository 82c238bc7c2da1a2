// What a window still knows of a page that it opens, put together with what the server has.

import { begin, pageAt, record } from "../model/history";
import type { History } from "../model/history";
import { samePage } from "../model/page";
import type { Opened } from "../transport/protocol";
import { kept, leftBehind } from "./keeping";
import { say } from "./messages";

export const ELSEWHERE = "changed in another window";

/** The steps this window knows of a page, with edits that never arrived; and the revision they are based on. */
export function remembered(name: string, { page, revision }: Opened): { history: History; base: string; taken: Set<string> } {
  const draft = kept(name);
  const left = leftBehind(name);
  // What has arrived after all needs no taking over.
  const unsent = draft?.unsent ? { ...draft, page: pageAt(draft.history) } : left.find((one) => !samePage(one.page, page));
  const taken = new Set(left.filter((one) => samePage(one.page, page)).map((one) => one.window));
  if (unsent) taken.add(unsent.window);
  let history = draft?.history ?? begin(page);
  if (!unsent || samePage(unsent.page, page)) {
    history = samePage(pageAt(history), page) ? history : record(history, ELSEWHERE, page);
    // The very object, so that it is known to be what the server has.
    return { history: { ...history, steps: history.steps.map((step, k) => (k === history.now ? { ...step, page } : step)) }, base: revision, taken };
  }
  if (!draft?.unsent) {
    history = record(history, "edits of a window that was closed", unsent.page);
    say("info", `Edits of ${name} that had not been saved were brought back.`, { page: name });
  }
  // What the server has may be what was on its way when the window went; then nobody else has written.
  const ours = unsent.flying !== null && samePage(unsent.flying, page);
  const known = ours || history.steps.some((step) => samePage(step.page, page));
  return { history, base: known ? revision : unsent.revision, taken };
}
