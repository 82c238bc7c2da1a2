// In place of the package react-remove-scroll, see vite.config.ts: an element without a lock.

import type { ReactNode } from "react";

export function RemoveScroll({ children }: { children?: ReactNode }): ReactNode {
  return children;
}
