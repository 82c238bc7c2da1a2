// One page of the gallery: its picture comes when the card comes into view.

import { useEffect, useRef, useState } from "react";
import { openGallery } from "../../state/documents";
import { server } from "../../state/store";
import type { GalleryEntry } from "../../transport/protocol";

/** Addresses of pictures that were drawn; they stay, so that the gallery comes back at once. */
const drawn = new Map<string, Promise<string>>();

function picture(name: string): Promise<string> {
  const found = drawn.get(name);
  if (found) return found;
  const asked = server()
    .ask<{ svg: string }>("picture", { gallery: name })
    .then(({ svg }) => URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" })));
  drawn.set(name, asked);
  asked.catch(() => drawn.delete(name));
  return asked;
}

export function GalleryCard({ entry }: { entry: GalleryEntry }) {
  const box = useRef<HTMLLIElement>(null);
  const [seen, setSeen] = useState(false);
  const [address, setAddress] = useState<string | null>(null);
  const [missing, setMissing] = useState(false);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const watch = new IntersectionObserver((found) => found.some((one) => one.isIntersecting) && setSeen(true), { rootMargin: "200px" });
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    let there = true;
    if (seen) picture(entry.name).then((made) => there && setAddress(made), () => there && setMissing(true));
    return () => {
      there = false;
    };
  }, [seen, entry.name]);
  const number = /^\d+/.exec(entry.name)?.[0];
  const take = async () => {
    setBusy(true);
    await openGallery(entry.name);
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
