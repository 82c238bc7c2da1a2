// Cells of a large value, requested page by page as they become visible, and cached.

import { useCallback, useEffect, useRef, useState } from "react";
import { messageOf } from "../transport/protocol";
import type { Window } from "./requests";

const HIGH = 100;
const BROAD = 50; // with HIGH within what the server gives at once
const MOST_KEPT = 60; // pages

export interface Pages {
  text: (row: number, column: number) => string | null | undefined;
  see: (rows: [number, number], columns: [number, number]) => void;
  fault: string | null;
}

/** `ask` must be the same function as long as it is about the same thing: another one begins anew. */
export function usePages(ask: (rows: [number, number], columns: [number, number]) => Promise<Window>): Pages {
  const kept = useRef(new Map<string, (string | null)[][] | null>());
  const [, redraw] = useState(0);
  const [fault, setFault] = useState<string | null>(null);
  const current = useRef(ask);
  if (current.current !== ask) {
    current.current = ask;
    kept.current = new Map();
  }
  useEffect(() => setFault(null), [ask]);

  const load = useCallback(
    async (key: string, row: number, column: number) => {
      const pages = kept.current;
      pages.set(key, null);
      while (pages.size > MOST_KEPT) pages.delete(pages.keys().next().value!);
      try {
        const reply = await ask([row * HIGH, (row + 1) * HIGH], [column * BROAD, (column + 1) * BROAD]);
        pages.set(key, reply.cells);
      } catch (error) {
        pages.delete(key);
        setFault(messageOf(error));
      }
      redraw((n) => n + 1);
    },
    [ask],
  );

  const see = useCallback(
    (rows: [number, number], columns: [number, number]) => {
      for (let r = Math.floor(rows[0] / HIGH); r * HIGH < rows[1]; r++) {
        for (let c = Math.floor(columns[0] / BROAD); c * BROAD < columns[1]; c++) {
          const key = `${r} ${c}`;
          if (!kept.current.has(key)) void load(key, r, c);
        }
      }
    },
    [load],
  );
  const text = (row: number, column: number) => kept.current.get(`${Math.floor(row / HIGH)} ${Math.floor(column / BROAD)}`)?.[row % HIGH]?.[column % BROAD];
  return { text, see, fault };
}
