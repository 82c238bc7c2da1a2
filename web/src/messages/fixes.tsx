// Known fixes of an error: the server finds and applies them; here they are buttons, and each is one step of the history.

import { doc, server } from "../app/store";
import { change, select } from "../page/actions";
import * as edit from "../page/edit";
import type { Block, Fix } from "../transport/protocol";
import { attempt, notify, settle } from "./messages";

/** Apply a fix to a page as it is now. */
export async function applyFix(fix: Fix, page: string): Promise<boolean> {
  const open = doc(page);
  if (!open || !FEATURES.fixes) return false;
  const reply = await attempt(() => server().request<{ blocks: Block[] }>("fix", { page: open.page, fix }), { page });
  if (!reply) return false;
  if (doc(page)?.page !== open.page) {
    notify("warning", "The page changed meanwhile, so the fix was not applied.", { page });
    return false;
  }
  change(fix.title, (now) => edit.putBlocks(now, reply.blocks), false, page);
  settle(page, "wire", fix.block || undefined, fix.pin || undefined);
  settle(page, "literal", fix.block || undefined, fix.pin || undefined);
  settle(page, "run", fix.block || undefined);
  const added = reply.blocks.filter((block) => !open.page.blocks.some((known) => known.id === block.id));
  if (added.length && page === doc()?.name) select(added.map((block) => block.id));
  return true;
}

export function FixButtons({ fixes, page, done }: { fixes: Fix[] | undefined; page: string | null; done?: () => void }) {
  if (!FEATURES.fixes || !fixes?.length || page === null) return null;
  return (
    <span className="fixes nodrag">
      {fixes.map((fix) => (
        <button key={fix.title} className="fix" onClick={() => void applyFix(fix, page).then((ok) => ok && done?.())}>
          {fix.title}
        </button>
      ))}
    </span>
  );
}
