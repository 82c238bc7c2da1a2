// Run states that arrive out of order.

import { beforeEach, describe, expect, it } from "vitest";
import { begin } from "../src/history/history";
import { EMPTY } from "../src/page/page";
import { connect } from "../src/project/pages";
import { applyRunState } from "../src/run/runs";
import { NOTHING_SELECTED, doc, get, set } from "../src/app/store";
import type { RunState, StudioEvent, Transport } from "../src/transport/protocol";
import { RequestError } from "../src/transport/protocol";

const fault = { kind: "InvalidArgumentError", text: "indices[0] = 3", message: "rows: indices[0] = 3", block: "rows", pin: null };
const running = { phase: "running", serial: 1, run: 2, done: 2, seconds: 0.1, engine: "numpy", error: null, revision: "r", recipes: {}, results: {}, carried: [] } as unknown as RunState;
const failed = { ...running, phase: "failed", serial: 2, error: fault } as unknown as RunState;
const checked = { blocks: {}, errors: {}, waiting: [], sessions: [], recipes: {} };

let send: (event: StudioEvent) => void = () => undefined;
const transport = {
  window: "w",
  request: () => Promise.reject(new RequestError(fault)),
  listen: (onEvent: (event: StudioEvent) => void) => {
    send = onEvent;
    return () => undefined;
  },
} as unknown as Transport;
const event = (state: RunState): StudioEvent => ({ event: "run", name: "p", state });

beforeEach(async () => {
  await connect(transport, null);
  const p = { name: "p", page: EMPTY, history: begin(EMPTY), revision: "r", sent: EMPTY, checked, run: null, saving: "saved" as const, ...NOTHING_SELECTED };
  set({ docs: { p }, active: "p", messages: [], toasts: [] });
});

describe("an outdated run state", () => {
  it("is ignored if its event comes after the reply, and the failure is shown once", () => {
    applyRunState("p", failed);
    send(event(running));
    send(event(failed));
    expect(doc("p")?.run?.phase).toBe("failed");
    expect(get().messages.map(({ text, count }) => [text, count])).toEqual([[fault.message, 1]]);
  });
  it("is ignored if its reply comes after the event", () => {
    send(event(failed));
    applyRunState("p", running);
    expect(doc("p")?.run?.phase).toBe("failed");
    expect(get().messages[0]?.count).toBe(1);
  });
  it("differs from a later one, which fails again and is shown again", () => {
    send(event(failed));
    send(event({ ...running, serial: 3 }));
    send(event({ ...failed, serial: 4 }));
    expect(get().messages[0]?.count).toBe(2);
  });
});
