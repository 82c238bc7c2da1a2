// The drawing as a picture, on white or on the ground of the theme.

import { useEffect, useRef, useState } from "react";
import { download, drawPicture, exported, reason } from "../../state/exporting";
import { closeDialog } from "../DialogFrame";

export function PicturePanel() {
  const box = useRef<HTMLDivElement>(null);
  const [ground, setGround] = useState<"white" | "theme">("white");
  const [svg, setSvg] = useState<{ name: string; text: string } | null>(null);
  const [picture, setPicture] = useState<{ blob: Blob; address: string } | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  useEffect(() => {
    let there = true;
    exported("svg").then((found) => there && setSvg(found), (error: unknown) => there && setFault(reason(error)));
    return () => {
      there = false;
    };
  }, []);
  useEffect(() => {
    if (!svg) return;
    let there = true;
    let address = "";
    const colour = ground === "white" ? "#ffffff" : getComputedStyle(box.current!).backgroundColor;
    drawPicture(svg.text, colour).then(
      (blob) => {
        if (!there) return;
        address = URL.createObjectURL(blob);
        setPicture({ blob, address });
      },
      (error: unknown) => there && setFault(reason(error)),
    );
    return () => {
      there = false;
      if (address) URL.revokeObjectURL(address);
    };
  }, [svg, ground]);
  if (fault) return <p className="fault" role="alert">{fault}</p>;
  return (
    <>
      <label className="export-mode">
        Ground{" "}
        <select value={ground} onChange={(event) => setGround(event.target.value as typeof ground)}>
          <option value="white">white</option>
          <option value="theme">as on the screen</option>
        </select>
      </label>
      <div className="export-picture" ref={box}>{picture ? <img src={picture.address} alt="The page as a picture" /> : <span className="quiet">…</span>}</div>
      <div className="dialog-foot">
        <button className="primary" disabled={!picture} onClick={() => download(svg!.name.replace(/\.svg$/, ".png"), picture!.blob)}>Download</button>
        <button onClick={closeDialog}>Close</button>
      </div>
    </>
  );
}
