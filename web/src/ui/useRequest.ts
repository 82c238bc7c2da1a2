// Hooks that send requests while a page runs: a few times a second, never two at once.

import { useEffect, useRef, useState } from "react";
import type { Doc } from "../app/store";
import { server, useDoc } from "../app/store";
import { messageOf } from "../transport/protocol";

const PAUSE = 200; // milliseconds between two updates during a run

/** A value that changes at most once per `pause`; the last change is never lost. A change of `of` takes effect at once. */
export function useThrottled<T>(value: T, of: unknown, pause = PAUSE): T {
  const [shown, setShown] = useState({ value, of, when: 0 });
  const latest = useRef(value);
  latest.current = value;
  const now = shown.of !== of ? { value, of, when: performance.now() } : shown;
  useEffect(() => {
    if (now !== shown) {
      setShown(now);
      return;
    }
    if (Object.is(now.value, value)) return;
    const wait = Math.max(0, now.when + pause - performance.now());
    const timer = setTimeout(() => setShown({ value: latest.current, of, when: performance.now() }), wait);
    return () => clearTimeout(timer);
    // A running timer is not restarted by new values: otherwise a steady stream would never be shown.
  }, [Object.is(now.value, value), now, of, pause]); // eslint-disable-line
  return now.value;
}

/** The active page, with a throttled run state. */
export function useThrottledDoc(): Doc | null {
  const open = useDoc();
  const run = useThrottled(open?.run ?? null, open?.name ?? null);
  return open ? { ...open, run } : null;
}

/** Changes with every run. */
export function tickOf(open: Doc | null): unknown {
  return open?.run ?? null;
}

export interface RequestState<T> {
  found: T | null;
  failure: string | null;
}

/** The reply to a verb, requested again when its arguments or the tick change; the latest request wins. */
export function useRequest<T>(verb: string | null, args: Record<string, unknown>, tick: unknown): RequestState<T> {
  const [reply, setReply] = useState<RequestState<T>>({ found: null, failure: null });
  const request = JSON.stringify([verb, args]);
  const state = useRef({ busy: false, again: false, alive: true, request });
  state.current.request = request;
  useEffect(() => {
    state.current.alive = true;
    return () => {
      state.current.alive = false;
    };
  }, []);
  useEffect(() => {
    const now = state.current;
    if (verb === null) return;
    if (now.busy) {
      now.again = true;
      return;
    }
    const send = async () => {
      now.busy = true;
      do {
        now.again = false;
        const [current, sent] = JSON.parse(now.request) as [string | null, Record<string, unknown>];
        if (current === null) break;
        let next: RequestState<T>;
        try {
          next = { found: await server().request<T>(current, sent), failure: null };
        } catch (error) {
          next = { found: null, failure: messageOf(error) };
        }
        if (now.alive) setReply(next);
      } while (now.again && now.alive);
      now.busy = false;
    };
    void send();
  }, [request, tick, verb]);
  return reply;
}
