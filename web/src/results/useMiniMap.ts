// The numbers of a result that is drawn on its block, sampled by the server. Requests of all blocks share a few places,
// and during a run a block asks at most twice a second.

import { useEffect, useState } from "react";
import type { ResultRef } from "../app/store";
import { get, server } from "../app/store";
import type { HeatMap } from "../transport/protocol";
import { useThrottled } from "../ui/useRequest";
import { resultArgs } from "./results";

const MOST = 48; // rows and columns of the sample
const PAUSE = 500; // milliseconds
const PLACES = 3; // requests at the same time

let busy = 0;
const waiting: (() => void)[] = [];

async function inTurn<T>(work: () => Promise<T>): Promise<T> {
  if (busy >= PLACES) await new Promise<void>((resolve) => waiting.push(resolve));
  busy++;
  try {
    return await work();
  } finally {
    busy--;
    waiting.shift()?.();
  }
}

/** The sample of a result; null before it arrives, and if the result has no numbers. */
export function useMiniMap(ref: ResultRef | null, rank: number, run: number): HeatMap | null {
  const [found, setFound] = useState<HeatMap | null>(null);
  const of = ref ? `${ref.block} ${ref.pin} ${ref.entry}` : null;
  const tick = useThrottled(run, of, PAUSE);
  useEffect(() => {
    if (!ref) return undefined;
    let alive = true;
    const name = get().active;
    void inTurn(async () => {
      if (!alive) return;
      try {
        const map = await server().request<HeatMap>("map", { name, ...resultArgs(ref), at: Array.from({ length: Math.max(0, rank - 2) }, () => 0), most: MOST, peaks: true });
        if (alive) setFound(map);
      } catch {
        if (alive) setFound(null); // the block still shows dtype, shape and the first elements
      }
    });
    return () => {
      alive = false;
    };
  }, [of, tick]); // eslint-disable-line
  return ref ? found : null;
}
