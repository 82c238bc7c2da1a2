// Verbs over HTTP: one POST each, events as a stream of lines. A window has access by a cookie, which scripts cannot
// read, and a key that is stored for this origin and sent as a header. It gets both for the secret in the address that
// opened it, which works once.

import type { Fault, StudioEvent, Transport } from "./protocol";
import { RequestError, windowName } from "./protocol";

const RETRY = 1000; // milliseconds until a lost connection is retried
const SILENCE = 25_000; // milliseconds without a beat after which a connection counts as lost

const KEY = "rowgrad:key";

/** Remove the launch secret from the window's address and its history, and return it. */
export function takeLaunch(): string | null {
  const found = new URLSearchParams(location.hash.slice(1)).get("launch");
  if (found !== null) history.replaceState(history.state, "", location.pathname + location.search);
  return found;
}

export class HttpTransport implements Transport {
  readonly window = windowName();
  private key = ""; // for browsers without storage
  private readonly entered: Promise<string | null>; // null, or why the launch secret was not accepted

  constructor(
    private readonly base: string,
    launch: string | null,
  ) {
    this.entered = launch === null ? Promise.resolve(null) : this.enter(launch);
  }

  /** Exchange the launch secret for a key. If that fails, the window may still have access from before. */
  async enter(launch: string): Promise<string | null> {
    try {
      const reply = await fetch(`${this.base}api/enter`, { method: "POST", headers: { "X-Rowgrad-Launch": launch } });
      const answer = (await reply.json()) as { key?: string; error?: Fault };
      if (!reply.ok) return answer.error?.message ?? `the server answered ${reply.status}`;
      this.key = answer.key ?? "";
      localStorage.setItem(KEY, this.key);
    } catch {
      // No storage, or no server: the next request will show.
    }
    return null;
  }

  /** Read each time: another window may have got access to a restarted studio. */
  private headers(): Record<string, string> {
    try {
      return { "X-Rowgrad-Page": localStorage.getItem(KEY) ?? this.key };
    } catch {
      return { "X-Rowgrad-Page": this.key };
    }
  }

  async request<T>(verb: string, args: Record<string, unknown> = {}): Promise<T> {
    return this.post(verb, "", JSON.stringify(args), "application/json");
  }

  async send<T>(verb: string, args: Record<string, string>, file: Blob): Promise<T> {
    return this.post(verb, `?${new URLSearchParams(args)}`, file, "application/octet-stream");
  }

  private async post<T>(verb: string, query: string, body: BodyInit, type: string): Promise<T> {
    const rejection = await this.entered;
    let reply: Response;
    try {
      reply = await fetch(`${this.base}api/${verb}${query}`, {
        method: "POST",
        body,
        headers: { "Content-Type": type, ...this.headers() },
      });
    } catch {
      throw new RequestError(connectionError("the server does not answer; what you do is kept here until it does"));
    }
    if (reply.ok) return (await reply.json()) as T;
    let fault: Fault;
    try {
      fault = ((await reply.json()) as { error: Fault }).error;
    } catch {
      fault = connectionError(`the server answered ${reply.status}`);
    }
    if (reply.status === 401 && rejection !== null) fault = { ...fault, message: rejection, text: rejection };
    throw new RequestError(fault);
  }

  listen(onEvent: (event: StudioEvent) => void, onConnection: (connected: boolean, signedOut?: boolean) => void): () => void {
    const stop = new AbortController();
    const again = async () => {
      await this.entered;
      while (!stop.signal.aborted) {
        const one = new AbortController();
        const end = () => one.abort();
        stop.signal.addEventListener("abort", end);
        let quiet = setTimeout(end, SILENCE);
        let signedOut = false;
        try {
          const reply = await fetch(`${this.base}api/events?window=${this.window}`, {
            headers: this.headers(),
            signal: one.signal,
          });
          signedOut = reply.status === 401;
          if (reply.ok && reply.body) {
            onConnection(true);
            await lines(reply.body, (line) => {
              clearTimeout(quiet);
              quiet = setTimeout(end, SILENCE);
              onEvent(JSON.parse(line) as StudioEvent);
            });
          }
        } catch {
          // Reported below: the connection is gone either way.
        }
        clearTimeout(quiet);
        stop.signal.removeEventListener("abort", end);
        if (stop.signal.aborted) return;
        onConnection(false, signedOut);
        await new Promise((done) => setTimeout(done, RETRY));
      }
    };
    void again();
    return () => stop.abort();
  }
}

function connectionError(message: string): Fault {
  return { kind: "ConnectionError", message, text: message, pin: null };
}

async function lines(stream: ReadableStream<Uint8Array>, take: (line: string) => void): Promise<void> {
  const reader = stream.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop() ?? "";
    for (const line of parts) if (line) take(line);
  }
}
