// The start screen: what to begin with, the project's pages, and the gallery.

import { useRef, useState } from "react";
import { useStudio } from "../app/store";
import { perform } from "../commands/commands";
import { importFiles, isImportable } from "../import/import";
import { notify } from "../messages/messages";
import { beginTour } from "../tour/tour";
import type { GalleryEntry } from "../transport/protocol";
import { filterOf } from "../ui/filter";
import { PageList } from "./PageList";
import { Picture } from "./Picture";
import { newPage, openGalleryPage } from "./pages";

export function StartScreen() {
  const hello = useStudio((state) => state.hello)!;
  const pages = useStudio((state) => state.pages);
  const [typed, setTyped] = useState("");
  const isFiltered = typed.trim() !== "";
  const fits = filterOf(typed);
  const shownPages = pages.filter((page) => fits(page.name));
  const shown = hello.gallery.filter((entry) => fits(`${entry.name} ${entry.title} ${entry.text}`));
  const groups = [
    { id: "start-gallery", title: "Gallery", note: "Each opens as a new page of yours.", entries: shown.filter((entry) => !entry.reference) },
    { id: "start-reference", title: "Reference", note: "The worked examples of the manual.", entries: shown.filter((entry) => entry.reference) },
  ];
  return (
    <main className="start" aria-label="Gallery and pages">
      <div className="start-head">
        <div>
          <h1>{hello.project.name}</h1>
          <p className="quiet start-folder">{hello.project.folder}</p>
        </div>
        <label className="start-search">
          <span className="unseen">Search pages and gallery</span>
          <input type="search" placeholder="Search pages and gallery" value={typed} onChange={(event) => setTyped(event.target.value)} />
        </label>
        {isFiltered && <span role="status" className="quiet">{shownPages.length + shown.length} found</span>}
      </div>
      <div className="start-body">
        {!isFiltered && !pages.length && <FirstSteps />}
        <section className="start-pages" aria-labelledby="start-pages">
          <div className="start-title">
            <h2 id="start-pages">Pages</h2>
            <button className="primary" onClick={() => void newPage()}>New empty page</button>
            {pages.length > 0 && <ImportButtons />}
          </div>
          <PageList pages={shownPages} searched={isFiltered} />
        </section>
        {FEATURES.gallery &&
          groups.map(({ id, title, note, entries }) => (
            <section key={id} className="start-gallery" aria-labelledby={id}>
              <div className="start-title">
                <h2 id={id}>{title}</h2>
                <span className="quiet">{note}</span>
              </div>
              {entries.length ? (
                <ul className={`cards ${id}`}>{entries.map((entry) => <GalleryCard key={entry.name} entry={entry} />)}</ul>
              ) : (
                <p className="quiet">{isFiltered ? "No page here matches." : "There are no pages here."}</p>
              )}
            </section>
          ))}
      </div>
    </main>
  );
}

/** What an empty project offers. */
function FirstSteps() {
  const folder = useRef<HTMLInputElement>(null);
  const toGallery = () => {
    document.getElementById("start-gallery")?.scrollIntoView({ block: "start", behavior: "smooth" });
    document.querySelector<HTMLElement>("[data-gallery]")?.focus({ preventScroll: true });
  };
  return (
    <section className="first-steps" aria-label="Begin">
      {FEATURES.tour && (
        <Step title="Draw a first gradient" text="A tour of six steps on the real canvas. It takes about a minute." primary run={() => void beginTour()} />
      )}
      {FEATURES.gallery && <Step title="Start from an example" text="Twelve pages, from one lookup to a two-tower model." run={toGallery} />}
      {FEATURES.import && (
        <>
          <Step title="Import files …" text="Pages and projects (.json), drawings of enuSpace (.svg, .json) with their .dat. Dropping them on this window works too." run={() => perform("import")} />
          <Step title="Open a folder" text="Copies the pages of a folder into this project. To work in the folder itself, run rowgrad studio FOLDER." run={() => folder.current?.click()} />
          <FolderField field={folder} />
        </>
      )}
    </section>
  );
}

function Step({ title, text, run, primary = false }: { title: string; text: string; run: () => void; primary?: boolean }) {
  return (
    <button className={`first-step${primary ? " primary" : ""}`} onClick={run}>
      <b>{title}</b>
      <span>{text}</span>
    </button>
  );
}

function ImportButtons() {
  const folder = useRef<HTMLInputElement>(null);
  if (!FEATURES.import) return null;
  return (
    <>
      <button onClick={() => perform("import")} title="Pages and projects (.json), drawings of enuSpace (.svg, .json) with their .dat; or drop them on this window">Import files …</button>
      <button onClick={() => folder.current?.click()}>Open a folder …</button>
      {FEATURES.tour && <button onClick={() => void beginTour()}>Draw a first gradient</button>}
      <FolderField field={folder} />
    </>
  );
}

/** Chooses a folder; its pages are imported as files are. */
function FolderField({ field }: { field: React.RefObject<HTMLInputElement | null> }) {
  return (
    <input
      ref={(input) => {
        field.current = input;
        input?.setAttribute("webkitdirectory", "");
      }}
      type="file"
      hidden
      aria-label="Folder to open"
      onChange={(event) => {
        const files = [...(event.target.files ?? [])].filter((file) => isImportable(file.name));
        event.target.value = ""; // so that the same folder can be chosen again
        if (files.length) void importFiles(files);
        else notify("warning", "This folder has no pages: .json, .svg and .dat files are imported.", { page: null });
      }}
    />
  );
}

function GalleryCard({ entry }: { entry: GalleryEntry }) {
  const [busy, setBusy] = useState(false);
  const number = entry.reference ? /^\d+/.exec(entry.name)?.[0] : undefined;
  const take = async () => {
    setBusy(true);
    await openGalleryPage(entry.name);
    setBusy(false);
  };
  return (
    <li>
      <button className="card" disabled={busy} onClick={() => void take()} data-gallery={entry.name} title={`Open ${entry.title} as a new page`}>
        <Picture of={{ gallery: entry.name }} alt={`Drawing of ${entry.title}`} />
        <span className="card-text">
          <b>{number && <span className="card-number">{number}</span>} {entry.title}</b>
          <span className="quiet">{entry.blocks} {entry.blocks === 1 ? "block" : "blocks"}</span>
        </span>
        <span className={`card-line${entry.reference ? " short" : ""}`}>{entry.text}</span>
      </button>
    </li>
  );
}
