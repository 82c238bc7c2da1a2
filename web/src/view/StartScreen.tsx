// What is shown first: the project's pages, and the gallery to begin from.

import { useState } from "react";
import { perform } from "../state/commands";
import { newPage } from "../state/documents";
import { useStudio } from "../state/store";
import { GalleryCard } from "./out/GalleryCard";
import { PageList } from "./out/PageList";

export function StartScreen() {
  const hello = useStudio((state) => state.hello)!;
  const pages = useStudio((state) => state.pages);
  const [typed, setTyped] = useState("");
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (text: string) => words.every((word) => text.toLowerCase().includes(word));
  const shownPages = pages.filter((page) => fits(page.name));
  const shown = hello.gallery.filter((entry) => fits(`${entry.name} ${entry.title} ${entry.text}`));
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
        {words.length > 0 && <span role="status" className="quiet">{shownPages.length + shown.length} found</span>}
      </div>
      <div className="start-body">
        <section className="start-pages" aria-labelledby="start-pages">
          <div className="start-title">
            <h2 id="start-pages">Pages</h2>
            <button className="primary" onClick={() => void newPage()}>New empty page</button>
          </div>
          <PageList pages={shownPages} searched={words.length > 0} />
          <ImportHint />
        </section>
        {FEATURES.gallery && (
          <section className="start-gallery" aria-labelledby="start-gallery">
            <div className="start-title">
              <h2 id="start-gallery">Gallery</h2>
              <span className="quiet">Each opens as a new page of yours.</span>
            </div>
            {shown.length ? (
              <ul className="cards">{shown.map((entry) => <GalleryCard key={entry.name} entry={entry} />)}</ul>
            ) : (
              <p className="quiet">{words.length ? "Nothing in the gallery fits." : "The gallery is empty here."}</p>
            )}
          </section>
        )}
      </div>
    </main>
  );
}

function ImportHint() {
  if (!FEATURES.import) return null;
  return (
    <div className="start-import">
      <h3>Import</h3>
      <p>Drop files on this window: pages and projects of rowgrad (.json), drawings of enuSpace-TensorFlow (.svg or .json, together with their .dat).</p>
      <button onClick={() => perform("import")}>Choose files …</button>
    </div>
  );
}
