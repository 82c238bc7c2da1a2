// Exports of a page: the server writes the texts, and the browser draws its SVG as a PNG.

import { doc, get, server } from "../app/store";
import { pinPath } from "../page/page";
import { RequestError, messageOf } from "../transport/protocol";

export type Form = "python" | "json" | "svg" | "dot";

export interface ExportedFile {
  name: string; // of the file
  text: string;
}

const TYPES: Record<string, string> = { py: "text/x-python", json: "application/json", svg: "image/svg+xml", dot: "text/vnd.graphviz" };
const SCALE = 2;
const MOST = 16384; // largest side in pixels that browsers draw

export async function exportPage(form: Form): Promise<ExportedFile> {
  return server().request<ExportedFile>("export", { page: { ...doc()!.page, name: doc()!.name }, as: form });
}

/** The shell command that runs the page as the run bar would. */
export async function commandLine(mode: "once" | "steps" | "rate"): Promise<ExportedFile> {
  const { steps, rate, engine } = get().runMode;
  const how = mode === "once" ? {} : { steps, ...(mode === "rate" ? { rate } : {}) };
  const { text } = await server().request<{ text: string }>("command", { name: doc()!.name, mode, engine, ...how });
  return { name: `${doc()!.name}.sh`, text };
}

export function errorText(error: unknown): string {
  const message = messageOf(error);
  return error instanceof RequestError && error.fault.block ? `${pinPath(error.fault.block, error.fault.pin)}: ${message}` : message;
}

export function download(name: string, content: Blob | string): void {
  const type = TYPES[name.slice(name.lastIndexOf(".") + 1)] ?? "text/plain";
  const address = URL.createObjectURL(typeof content === "string" ? new Blob([content], { type: `${type};charset=utf-8` }) : content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000); // the browser may not have read it yet
}

/** Draw an SVG as a PNG of twice its size, on this background colour. */
export async function drawPng(svg: string, ground: string): Promise<Blob> {
  const address = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const scale = Math.min(SCALE, MOST / image.naturalWidth, MOST / image.naturalHeight);
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(image.naturalWidth * scale));
    canvas.height = Math.max(1, Math.round(image.naturalHeight * scale));
    const pen = canvas.getContext("2d")!;
    pen.fillStyle = ground;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done, fail) => canvas.toBlob((made) => (made ? done(made) : fail(new Error("this page is too large for a picture; the SVG has no such bound"))), "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}
