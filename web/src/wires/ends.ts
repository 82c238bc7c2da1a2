// What the server knows of a wire's beginning.

import type { Doc } from "../app/store";
import type { End } from "../page/page";
import type { Info } from "../transport/protocol";

export function infoOfEnd(open: Doc, from: End): Info | undefined {
  const found = open.checked.blocks[from.block]?.outputs[from.pin];
  if (!Array.isArray(found)) return found;
  return from.index === null ? undefined : found[from.index];
}
