// Undo inside a dialog, before anything is applied: the tables there were.

import { useRef } from "react";

const MOST = 200;

export function usePast<T>(): { keep: (was: T) => void; back: (show: (was: T) => void) => void } {
  const past = useRef<T[]>([]);
  return {
    keep: (was) => void (past.current = [...past.current.slice(1 - MOST), was]),
    back: (show) => {
      const was = past.current.pop();
      if (was !== undefined) show(was);
    },
  };
}
