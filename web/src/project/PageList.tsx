// The project's pages: open, rename, remove; a page that cannot be opened shows why.

import { Pencil, Trash2 } from "lucide-react";
import { useState } from "react";
import { set, useStudio } from "../app/store";
import { importStored } from "../import/import";
import type { PageInfo } from "../transport/protocol";
import { Picture } from "./Picture";
import { open, removePage, removedPages, restorePage } from "./pages";

export function PageList({ pages, searched }: { pages: PageInfo[]; searched: boolean }) {
  const [, setTimes] = useState(0);
  const last = removedPages.at(-1);
  return (
    <>
      {pages.length ? (
        <ul className="page-list" aria-label="Pages of the project">
          {pages.map((page) => <PageRow key={page.name} page={page} />)}
        </ul>
      ) : (
        <p className="quiet">{searched ? "No page matches." : "There are no pages yet."}</p>
      )}
      {last !== undefined && (
        <p className="page-back">
          {last} was removed. <button onClick={() => void restorePage(last).then(() => setTimes((n) => n + 1))}>Bring back {last}</button>
        </p>
      )}
    </>
  );
}

type Listed = PageInfo & { pages?: string[] }; // a file that holds several pages lists them

function PageRow({ page }: { page: Listed }) {
  const shown = useStudio((state) => state.tabs.includes(page.name));
  const [confirming, setConfirming] = useState(false);
  const when = new Date(page.modified * 1000);
  return (
    <li className={page.error ? "faulty" : ""} data-page={page.name}>
      {!page.error && (
        <button className="plain page-picture" tabIndex={-1} aria-hidden="true" onClick={() => void open(page.name)}>
          <Picture of={{ name: page.name }} version={page.revision} alt="" />
        </button>
      )}
      <div className="page-row">
        <div className="page-name">
          {page.error ? (
            <span className="page-open">{page.name}</span>
          ) : (
            <button className="page-open plain" onClick={() => void open(page.name)} aria-label={`Open ${page.name}`}>{page.name}</button>
          )}
          <span className="quiet page-facts">
            {page.error ? "" : `${page.blocks} ${page.blocks === 1 ? "block" : "blocks"} · `}<time dateTime={when.toISOString()} title={when.toLocaleString()}>{dayText(when)}</time>{shown ? " · open" : ""}
          </span>
        </div>
        {page.pages && <button onClick={() => void importStored(page.name)}>Import its pages</button>}
        {!page.error && <button className="plain" aria-label={`Rename ${page.name}`} title="Rename" onClick={() => set({ dialog: { kind: "rename", page: page.name } })}><Pencil size={14} aria-hidden="true" /></button>}
        {!confirming && <button className="plain" aria-label={`Remove ${page.name}`} title="Remove" onClick={() => setConfirming(true)}><Trash2 size={14} aria-hidden="true" /></button>}
      </div>
      {page.error && <p className="fault">{page.error}</p>}
      {confirming && (
        <div className="page-asked" role="group" aria-label={`Remove ${page.name}?`}>
          <span>Remove {page.name}? It can be brought back.</span>
          <button autoFocus onClick={() => void removePage(page.name)}>Remove</button>
          <button onClick={() => setConfirming(false)}>Keep</button>
        </div>
      )}
    </li>
  );
}

function dayText(when: Date): string {
  const today = new Date().toDateString() === when.toDateString();
  return today ? when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : when.toLocaleDateString();
}
