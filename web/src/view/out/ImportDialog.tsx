// What the server says about a file, before it becomes a page.

import { useState } from "react";
import type { Page } from "../../transport/protocol";
import { DialogFrame } from "../DialogFrame";
import { next, openImported, pagesWith } from "./importing";

interface Line {
  level: string;
  place: string;
  message: string;
}

const LEVELS = ["error", "warning", "note"];

export function ImportDialog({ name, report, page }: { name: string; report: Line[]; page: Page }) {
  const [busy, setBusy] = useState(false);
  const pages = pagesWith(page);
  const blocks = pages.reduce((sum, one) => sum + one.blocks.length, 0);
  const sorted = [...report].sort((a, b) => rank(a) - rank(b));
  const count = (level: string) => report.filter((line) => line.level === level).length;
  const faults = [said(count("error"), "error"), said(count("warning"), "warning")].filter(Boolean).join(", ");
  const open = async () => {
    setBusy(true);
    await openImported(page);
    next();
  };
  return (
    <DialogFrame key={name} title={`Import ${name}`} wide={report.length > 0} onClose={next}>
      <p>
        {pages.length > 1 ? `${pages.length} pages` : `The page ${page.name}`} with {said(blocks, "block")}. {faults ? `The file has ${faults}.` : "It has no errors."}
      </p>
      {report.length > 0 && (
        <div className="report" tabIndex={0} role="region" aria-label="Report of the import">
          <table>
            <thead><tr><th scope="col">Kind</th><th scope="col">Place</th><th scope="col">What</th></tr></thead>
            <tbody>
              {sorted.map((line, k) => (
                <tr key={k} className={`level-${line.level}`}><td>{line.level}</td><td className="report-place">{line.place}</td><td>{line.message}</td></tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <div className="dialog-foot">
        <button onClick={next}>Leave it</button>
        <button className="primary" data-first disabled={busy} onClick={() => void open()}>{pages.length > 1 ? `Open ${pages.length} pages` : "Open"}</button>
      </div>
    </DialogFrame>
  );
}

function rank(line: Line): number {
  const k = LEVELS.indexOf(line.level);
  return k < 0 ? LEVELS.length : k;
}

function said(count: number, word: string): string {
  return count ? `${count} ${word}${count === 1 ? "" : "s"}` : word === "block" ? "no blocks" : "";
}
