// Cells of a large value, requested page by page as they become visible, and cached.

import { useCallback, useEffect, useRef, useState } from "react";
import { messageOf } from "../transport/protocol";
import type { Window } from "./requests";

const HIGH = 100;
const BROAD = 50; // with HIGH, within the server's limit per request
const MOST_CACHED = 60; // pages

export interface Pages {
  text: (row: number, column: number) => string | null | undefined;
  see: (rows: [number, number], columns: [number, number]) => void;
  fault: string | null;
}

/** `fetchCells` must be a stable function; another one empties the cache. */
export function useCellPages(fetchCells: (rows: [number, number], columns: [number, number]) => Promise<Window>): Pages {
  const cache = useRef(new Map<string, (string | null)[][] | null>());
  const [, redraw] = useState(0);
  const [fault, setFault] = useState<string | null>(null);
  const current = useRef(fetchCells);
  if (current.current !== fetchCells) {
    current.current = fetchCells;
    cache.current = new Map();
  }
  useEffect(() => setFault(null), [fetchCells]);

  const load = useCallback(
    async (key: string, row: number, column: number) => {
      const pages = cache.current;
      pages.set(key, null);
      while (pages.size > MOST_CACHED) pages.delete(pages.keys().next().value!);
      try {
        const reply = await fetchCells([row * HIGH, (row + 1) * HIGH], [column * BROAD, (column + 1) * BROAD]);
        pages.set(key, reply.cells);
      } catch (error) {
        pages.delete(key);
        setFault(messageOf(error));
      }
      redraw((n) => n + 1);
    },
    [fetchCells],
  );

  const see = useCallback(
    (rows: [number, number], columns: [number, number]) => {
      for (let r = Math.floor(rows[0] / HIGH); r * HIGH < rows[1]; r++) {
        for (let c = Math.floor(columns[0] / BROAD); c * BROAD < columns[1]; c++) {
          const key = `${r} ${c}`;
          if (!cache.current.has(key)) void load(key, r, c);
        }
      }
    },
    [load],
  );
  const text = (row: number, column: number) => cache.current.get(`${Math.floor(row / HIGH)} ${Math.floor(column / BROAD)}`)?.[row % HIGH]?.[column % BROAD];
  return { text, see, fault };
}
