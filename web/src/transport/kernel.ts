// Verbs through a notebook's kernel: the same requests and answers as over HTTP, as messages of a widget.

import type { Fault, StudioEvent, Transport } from "./protocol";
import { RequestError, windowName } from "./protocol";

/** The part of a widget's model that is used here. */
export interface KernelModel {
  get(name: string): unknown;
  send(message: unknown, callbacks?: unknown, buffers?: ArrayBuffer[]): void;
  on(event: "msg:custom", onEvent: (message: Answer) => void): void;
  off(event: "msg:custom", onEvent: (message: Answer) => void): void;
}

type Answer = { id: number; result?: unknown; error?: Fault } | { event: StudioEvent };

export class KernelTransport implements Transport {
  readonly window = windowName();
  private readonly waiting = new Map<number, { done: (result: never) => void; failed: (error: RequestError) => void }>();
  private next = 1;

  constructor(private readonly model: KernelModel) {
    model.on("msg:custom", (message) => {
      if (!("id" in message)) return;
      const pending = this.waiting.get(message.id);
      this.waiting.delete(message.id);
      if (message.error) pending?.failed(new RequestError(message.error));
      else pending?.done(message.result as never);
    });
  }

  request<T>(verb: string, fields: Record<string, unknown> = {}): Promise<T> {
    return this.post(verb, fields, []);
  }

  async send<T>(verb: string, fields: Record<string, string>, file: Blob): Promise<T> {
    return this.post(verb, fields, [await file.arrayBuffer()]);
  }

  private post<T>(verb: string, fields: Record<string, unknown>, buffers: ArrayBuffer[]): Promise<T> {
    const id = this.next++;
    return new Promise<T>((done, failed) => {
      this.waiting.set(id, { done: done as (result: never) => void, failed });
      this.model.send({ window: this.window, id, verb, given: fields }, undefined, buffers);
    });
  }

  listen(onEvent: (event: StudioEvent) => void, onConnection: (connected: boolean) => void): () => void {
    const take = (message: Answer) => {
      if ("event" in message) onEvent(message.event);
    };
    this.model.on("msg:custom", take);
    onConnection(true);
    return () => this.model.off("msg:custom", take);
  }
}
