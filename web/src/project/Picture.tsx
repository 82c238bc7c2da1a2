// A drawing of a page, loaded when it comes into view; cached, so that the start screen reappears at once.

import { useEffect, useRef, useState } from "react";
import { server } from "../app/store";

const addresses = new Map<string, Promise<string>>();

function addressOf(args: Record<string, unknown>, key: string): Promise<string> {
  const found = addresses.get(key);
  if (found) return found;
  const request = server()
    .request<{ svg: string }>("picture", args)
    .then(({ svg }) => URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" })));
  addresses.set(key, request);
  request.catch(() => addresses.delete(key));
  return request;
}

/** `of` are the arguments of the verb; `version` changes when the drawing does. */
export function Picture({ of, version = "", alt }: { of: { gallery: string } | { name: string }; version?: string; alt: string }) {
  const box = useRef<HTMLSpanElement>(null);
  const [isVisible, setVisible] = useState(false);
  const [address, setAddress] = useState<string | null>(null);
  const [missing, setMissing] = useState(false);
  const key = JSON.stringify([of, version]);
  useEffect(() => {
    const watch = new IntersectionObserver((found) => found.some((one) => one.isIntersecting) && setVisible(true), { rootMargin: "200px" });
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    let mounted = true;
    if (isVisible) addressOf(of, key).then((made) => mounted && setAddress(made), () => mounted && setMissing(true));
    return () => {
      mounted = false;
    };
  }, [isVisible, key]); // eslint-disable-line
  return (
    <span className="card-picture" ref={box}>
      {address ? <img src={address} alt={alt} /> : <span className="quiet">{missing ? "no picture" : "…"}</span>}
    </span>
  );
}
