// Verbs over HTTP: one POST each, events as a stream of lines. The token stands in the page's address.

import type { Fault, StudioEvent, Transport } from "./protocol";
import { Refusal, windowName } from "./protocol";

const RETRY = 1000; // milliseconds until a lost connection is tried again
const SILENCE = 25_000; // milliseconds without a beat after which a connection is taken for lost

export class HttpTransport implements Transport {
  readonly window = windowName();

  constructor(
    private readonly base: string,
    private readonly token: string,
  ) {}

  async ask<T>(verb: string, given: Record<string, unknown> = {}): Promise<T> {
    return this.post(verb, "", JSON.stringify(given), "application/json");
  }

  async send<T>(verb: string, given: Record<string, string>, file: Blob): Promise<T> {
    return this.post(verb, `?${new URLSearchParams(given)}`, file, "application/octet-stream");
  }

  private async post<T>(verb: string, query: string, body: BodyInit, type: string): Promise<T> {
    let reply: Response;
    try {
      reply = await fetch(`${this.base}api/${verb}${query}`, {
        method: "POST",
        body,
        headers: { "Content-Type": type, "X-Rowgrad-Token": this.token },
      });
    } catch {
      throw new Refusal(lost("the server does not answer; what you do is kept here until it does"));
    }
    if (reply.ok) return (await reply.json()) as T;
    let fault: Fault;
    try {
      fault = ((await reply.json()) as { error: Fault }).error;
    } catch {
      fault = lost(`the server answered ${reply.status}`);
    }
    throw new Refusal(fault);
  }

  listen(hear: (event: StudioEvent) => void, changed: (connected: boolean) => void): () => void {
    const stop = new AbortController();
    const again = async () => {
      while (!stop.signal.aborted) {
        const one = new AbortController();
        const end = () => one.abort();
        stop.signal.addEventListener("abort", end);
        let quiet = setTimeout(end, SILENCE);
        try {
          const reply = await fetch(`${this.base}api/events?window=${this.window}`, {
            headers: { "X-Rowgrad-Token": this.token },
            signal: one.signal,
          });
          if (reply.ok && reply.body) {
            changed(true);
            await lines(reply.body, (line) => {
              clearTimeout(quiet);
              quiet = setTimeout(end, SILENCE);
              hear(JSON.parse(line) as StudioEvent);
            });
          }
        } catch {
          // Told below: the connection is gone either way.
        }
        clearTimeout(quiet);
        stop.signal.removeEventListener("abort", end);
        if (stop.signal.aborted) return;
        changed(false);
        await new Promise((done) => setTimeout(done, RETRY));
      }
    };
    void again();
    return () => stop.abort();
  }
}

function lost(message: string): Fault {
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
