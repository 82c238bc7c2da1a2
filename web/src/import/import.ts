// Imports: the server reads each file, and its report is shown before a page is created.

import { doc, get, server, set } from "../app/store";
import { attempt, notify } from "../messages/messages";
import { EMPTY, blockOf } from "../page/page";
import { newPage } from "../project/pages";
import type { ImportReport, Page, ReportLine } from "../transport/protocol";

export const EXTENSIONS = [".json", ".svg", ".dat"];

type Answer = Omit<ImportReport, "page"> & { page: Page | null; pages: Page[] };
type Ready = { name: string; report: ImportReport["report"]; page: Page };

/** All pages of the file whose first page this is. */
const pagesByFirst = new WeakMap<Page, Page[]>();
const waiting: Ready[] = [];

export function pagesOf(page: Page): Page[] {
  return pagesByFirst.get(page) ?? [page];
}

export function isImportable(name: string): boolean {
  return EXTENSIONS.some((ending) => name.toLowerCase().endsWith(ending));
}

/** Import files, data before the drawings that need them. */
export async function importFiles(files: File[]): Promise<void> {
  if (!FEATURES.import) return;
  const isData = (file: File) => file.name.toLowerCase().endsWith(".dat");
  const sorted = [...files].sort((a, b) => Number(isData(b)) - Number(isData(a)));
  for (const file of sorted) {
    if (!isImportable(file.name)) notify("warning", `${file.name} is no page: ${EXTENSIONS.join(", ")} can be imported.`);
    else if (!file.size) notify("warning", `${file.name} is empty.`);
    else enqueue(file.name, await attempt(() => server().send<Answer>("import", { name: file.name }, file)));
  }
  const drawings = sorted.filter((file) => !isData(file));
  if (files.length && !drawings.length) notify("info", "The data are kept. Now drop the drawing of the same name.");
}

/** Import the pages of a project file that is already in the folder. */
export async function importStored(name: string): Promise<void> {
  if (FEATURES.import) enqueue(name, await attempt(() => server().send<Answer>("import", { name: `${name}.json` }, new Blob())));
}

function enqueue(name: string, answer: Answer | null): void {
  if (!answer?.page) return;
  pagesByFirst.set(answer.page, answer.pages);
  waiting.push({ name, report: answer.report, page: answer.page });
  if (get().dialog?.kind !== "import") showNext();
}

/** Show the report on the next file, if any. */
export function showNext(): void {
  const ready = waiting.shift();
  set({ dialog: ready ? { kind: "import", ...ready } : null });
}

/** Make the pages of a file. Its report stays readable among the messages, in its order. */
export async function openImported(page: Page, report: ReportLine[]): Promise<void> {
  for (const one of pagesOf(page)) await newPage(one);
  for (const { level, place, message } of [...report].reverse()) {
    const { block, pin } = endAt(place);
    notify(level === "note" ? "info" : "warning", block ? message : [place, message].filter(Boolean).join(": "), { block, pin }, false);
  }
}

/** The block of the page, and its pin, that a line of the report is about. */
function endAt(place: string): { block?: string; pin?: string } {
  const page = doc()?.page ?? EMPTY;
  if (blockOf(page, place)) return { block: place };
  const [, block = "", pin = ""] = /^(.+)\.(\w+)$/.exec(place) ?? [];
  return blockOf(page, block) ? { block, pin } : {};
}
