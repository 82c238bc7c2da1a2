// The start screen: the project's pages, and the gallery.

import { useEffect, useRef, useState } from "react";
import { server, useStudio } from "../app/store";
import { perform } from "../commands/commands";
import type { GalleryEntry } from "../transport/protocol";
import { filterOf } from "../ui/filter";
import { PageList } from "./PageList";
import { newPage, openGalleryPage } from "./pages";

export function StartScreen() {
  const hello = useStudio((state) => state.hello)!;
  const pages = useStudio((state) => state.pages);
  const [typed, setTyped] = useState("");
  const isFiltered = typed.trim() !== "";
  const fits = filterOf(typed);
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
        {isFiltered && <span role="status" className="quiet">{shownPages.length + shown.length} found</span>}
      </div>
      <div className="start-body">
        <section className="start-pages" aria-labelledby="start-pages">
          <div className="start-title">
            <h2 id="start-pages">Pages</h2>
            <button className="primary" onClick={() => void newPage()}>New empty page</button>
          </div>
          <PageList pages={shownPages} searched={isFiltered} />
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
              <p className="quiet">{isFiltered ? "Nothing in the gallery fits." : "The gallery is empty here."}</p>
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

/** URLs of pictures, cached so that the gallery reappears at once. */
const pictures = new Map<string, Promise<string>>();

function picture(name: string): Promise<string> {
  const found = pictures.get(name);
  if (found) return found;
  const request = server()
    .request<{ svg: string }>("picture", { gallery: name })
    .then(({ svg }) => URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" })));
  pictures.set(name, request);
  request.catch(() => pictures.delete(name));
  return request;
}

function GalleryCard({ entry }: { entry: GalleryEntry }) {
  const box = useRef<HTMLLIElement>(null);
  const [isVisible, setVisible] = useState(false);
  const [address, setAddress] = useState<string | null>(null);
  const [missing, setMissing] = useState(false);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const watch = new IntersectionObserver((found) => found.some((one) => one.isIntersecting) && setVisible(true), { rootMargin: "200px" });
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    let mounted = true;
    if (isVisible) picture(entry.name).then((made) => mounted && setAddress(made), () => mounted && setMissing(true));
    return () => {
      mounted = false;
    };
  }, [isVisible, entry.name]);
  const number = /^\d+/.exec(entry.name)?.[0];
  const take = async () => {
    setBusy(true);
    await openGalleryPage(entry.name);
    setBusy(false);
  };
  return (
    <li ref={box}>
      <button className="card" disabled={busy} onClick={() => void take()} data-gallery={entry.name} title={`Open ${entry.name} as a new page`}>
        <span className="card-picture">
          {address ? <img src={address} alt={`Drawing of ${entry.title}`} /> : <span className="quiet">{missing ? "no picture" : "…"}</span>}
        </span>
        <span className="card-text">
          <b>{number && <span className="card-number">{number}</span>} {entry.title}</b>
          <span className="quiet">{entry.blocks} {entry.blocks === 1 ? "block" : "blocks"}</span>
        </span>
        <span className="card-line">{entry.text}</span>
      </button>
    </li>
  );
}
