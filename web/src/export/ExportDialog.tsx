// The export dialog: a script, a file, a drawing, a picture, a command.

import { useEffect, useRef, useState } from "react";
import { useDoc } from "../app/store";
import { saveNow } from "../project/autosave";
import { DialogFrame, closeDialog } from "../ui/DialogFrame";
import type { ExportedFile, Form } from "./export";
import { commandLine, download, drawPng, errorText, exportPage } from "./export";

type Kind = Form | "png" | "command";

const KINDS: { kind: Kind; title: string; text: string }[] = [
  { kind: "python", title: "Python script", text: "A script that builds the same page and runs it." },
  { kind: "json", title: "Page (JSON)", text: "One file with everything in it, for another project." },
  { kind: "svg", title: "Drawing (SVG)", text: "The page as it is drawn, without a bound on its size." },
  { kind: "png", title: "Picture (PNG)", text: "The drawing in pixels, at twice its size." },
  { kind: "dot", title: "Graphviz (DOT)", text: "The blocks and wires, to be laid out by dot." },
  { kind: "command", title: "Command", text: "The line that runs this page in a shell, the way the bar above does." },
];

export function ExportDialog() {
  const open = useDoc();
  const [kind, setKind] = useState<Kind>("python");
  const tabs = useRef<HTMLDivElement>(null);
  if (!open) return null;
  const chosen = KINDS.find((one) => one.kind === kind)!;
  const step = (by: number) => {
    const k = (KINDS.indexOf(chosen) + by + KINDS.length) % KINDS.length;
    setKind(KINDS[k]!.kind);
    (tabs.current?.children[k] as HTMLElement | undefined)?.focus();
  };
  return (
    <DialogFrame title={`Export ${open.name}`} wide>
      <div className="export">
        <div
          role="tablist"
          aria-label="Forms of export"
          aria-orientation="vertical"
          className="export-kinds"
          ref={tabs}
          onKeyDown={(event) => {
            const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
            if (!by) return;
            event.preventDefault();
            step(by);
          }}
        >
          {KINDS.map((one) => (
            <button key={one.kind} role="tab" id={`export-${one.kind}`} aria-selected={one === chosen} aria-controls="export-panel" tabIndex={one === chosen ? 0 : -1} {...(one === chosen ? { "data-first": true } : {})} onClick={() => setKind(one.kind)}>
              {one.title}
            </button>
          ))}
        </div>
        <div role="tabpanel" id="export-panel" aria-labelledby={`export-${kind}`} className="export-panel">
          <p className="quiet">{chosen.text}</p>
          {kind === "png" ? <PicturePanel /> : kind === "command" ? <CommandPanel /> : <TextPanel key={kind} title={chosen.title} load={() => exportPage(kind)} />}
        </div>
      </div>
    </DialogFrame>
  );
}

function CommandPanel() {
  const open = useDoc()!;
  const [mode, setMode] = useState<"once" | "steps" | "rate">("once");
  return (
    <>
      <label className="export-mode">
        Run{" "}
        <select value={mode} onChange={(event) => setMode(event.target.value as typeof mode)}>
          <option value="once">once</option>
          <option value="steps">the steps chosen above</option>
          <option value="rate">the steps, at the rate chosen above</option>
        </select>
      </label>
      <TextPanel key={mode} title="Command" load={async () => ((await saveNow(open.name)) ? commandLine(mode) : Promise.reject(new Error("the page could not be saved, and the command would run the old one")))} />
    </>
  );
}

function TextPanel({ title, load }: { title: string; load: () => Promise<ExportedFile> }) {
  const [made, setMade] = useState<ExportedFile | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  const [status, setStatus] = useState("");
  const box = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    let mounted = true;
    load().then((found) => mounted && setMade(found), (error: unknown) => mounted && setFault(errorText(error)));
    return () => {
      mounted = false;
    };
    // Loaded once: the page does not change while the dialog is open.
  }, []);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(made!.text);
      setStatus("Copied.");
    } catch {
      box.current!.select();
      setStatus("The browser does not let this page copy. The text is selected: press Ctrl+C.");
    }
  };
  if (fault) return <p className="fault" role="alert">{fault}</p>;
  return (
    <>
      <textarea ref={box} readOnly spellCheck={false} wrap="off" aria-label={`${title} of the page`} className="export-text" value={made?.text ?? ""} placeholder={made ? "" : "…"} />
      <div className="dialog-foot">
        <span role="status" className="foot-left quiet">{status || made?.name}</span>
        <button disabled={!made} onClick={() => void copy()}>Copy</button>
        <button className="primary" disabled={!made} onClick={() => download(made!.name, made!.text)}>Download</button>
        <button onClick={closeDialog}>Close</button>
      </div>
    </>
  );
}

function PicturePanel() {
  const box = useRef<HTMLDivElement>(null);
  const [ground, setGround] = useState<"white" | "theme">("white");
  const [svg, setSvg] = useState<{ name: string; text: string } | null>(null);
  const [picture, setPicture] = useState<{ blob: Blob; address: string } | null>(null);
  const [fault, setFault] = useState<string | null>(null);
  useEffect(() => {
    let mounted = true;
    exportPage("svg").then((found) => mounted && setSvg(found), (error: unknown) => mounted && setFault(errorText(error)));
    return () => {
      mounted = false;
    };
  }, []);
  useEffect(() => {
    if (!svg) return;
    let mounted = true;
    let address = "";
    const colour = ground === "white" ? "#ffffff" : getComputedStyle(box.current!).backgroundColor;
    drawPng(svg.text, colour).then(
      (blob) => {
        if (!mounted) return;
        address = URL.createObjectURL(blob);
        setPicture({ blob, address });
      },
      (error: unknown) => mounted && setFault(errorText(error)),
    );
    return () => {
      mounted = false;
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
