// Importing files: chosen, or dropped anywhere on the window; the server's report comes before the page.

import { useEffect, useRef, useState } from "react";
import type { Page, ReportLine } from "../transport/protocol";
import { DialogFrame } from "../ui/DialogFrame";
import { EXTENSIONS, importFiles, isImportable, openImported, pagesOf, showNext } from "./import";

const LEVELS = ["error", "warning", "note"];

export function ImportDialog({ name, report, page }: { name: string; report: ReportLine[]; page: Page }) {
  const [busy, setBusy] = useState(false);
  const pages = pagesOf(page);
  const blocks = pages.reduce((sum, one) => sum + one.blocks.length, 0);
  const sorted = [...report].sort((a, b) => rank(a) - rank(b));
  const count = (level: string) => report.filter((line) => line.level === level).length;
  const faults = [counted(count("error"), "error"), counted(count("warning"), "warning")].filter(Boolean).join(", ");
  const open = async () => {
    setBusy(true);
    await openImported(page, report);
    showNext();
  };
  return (
    <DialogFrame key={name} title={`Import ${name}`} wide={report.length > 0} onClose={showNext}>
      <p>
        {pages.length > 1 ? `${pages.length} pages` : `The page ${page.name}`} with {counted(blocks, "block")}. {faults ? `The file has ${faults}.` : "It has no errors."}
      </p>
      {report.length > 0 && (
        <div className="report" tabIndex={0} role="region" aria-label="Report of the import">
          <table>
            <thead><tr><th scope="col">Level</th><th scope="col">Place</th><th scope="col">What</th></tr></thead>
            <tbody>
              {sorted.map((line, k) => (
                <tr key={k} className={`level-${line.level}`}><td>{line.level}</td><td className="report-place">{line.place}</td><td>{line.message}</td></tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <div className="dialog-foot">
        <button onClick={showNext}>Cancel</button>
        <button className="primary" data-first disabled={busy} onClick={() => void open()}>{pages.length > 1 ? `Open ${pages.length} pages` : "Open"}</button>
      </div>
    </DialogFrame>
  );
}

function rank(line: ReportLine): number {
  const k = LEVELS.indexOf(line.level);
  return k < 0 ? LEVELS.length : k;
}

function counted(count: number, word: string): string {
  return count ? `${count} ${word}${count === 1 ? "" : "s"}` : word === "block" ? "no blocks" : "";
}

/** During a drag only MIME types are known. Pages and drawings have one; arrays and data have none. */
const KINDS = ["application/json", "image/svg+xml"];

export function ImportDrop() {
  const field = useRef<HTMLInputElement>(null);
  const [over, setOver] = useState(false);
  useEffect(() => {
    if (!FEATURES.import) return;
    const isFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
    const dragged = (event: DragEvent) => {
      if (!isFiles(event)) return;
      setOver([...event.dataTransfer!.items].some((item) => KINDS.includes(item.type)));
      event.preventDefault(); // otherwise the browser would open the file in place of the studio
    };
    const left = (event: DragEvent) => {
      if (event.relatedTarget === null) setOver(false);
    };
    const dropped = (event: DragEvent) => {
      setOver(false);
      if (!isFiles(event)) return;
      const files = [...event.dataTransfer!.files];
      // Files that another drop target handled, such as arrays dropped on a value editor, are not imported.
      const ours = event.defaultPrevented ? files.filter((file) => isImportable(file.name)) : files;
      event.preventDefault();
      void importFiles(ours);
    };
    const openFiles = () => field.current?.click();
    window.addEventListener("dragover", dragged);
    window.addEventListener("dragleave", left);
    window.addEventListener("drop", dropped);
    window.addEventListener("rowgrad:import", openFiles);
    return () => {
      window.removeEventListener("dragover", dragged);
      window.removeEventListener("dragleave", left);
      window.removeEventListener("drop", dropped);
      window.removeEventListener("rowgrad:import", openFiles);
    };
  }, []);
  if (!FEATURES.import) return null;
  return (
    <>
      <input
        ref={field}
        type="file"
        hidden
        multiple
        accept={EXTENSIONS.join(",")}
        aria-label="Files to import"
        onChange={(event) => {
          const files = [...(event.target.files ?? [])];
          event.target.value = ""; // so that the same file can be chosen again
          void importFiles(files);
        }}
      />
      {over && <div className="drop-over" role="status">Drop to import: a page or project (.json), a drawing (.svg, .json) with its .dat</div>}
    </>
  );
}
