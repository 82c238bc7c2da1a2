// The top bar: open pages as tabs, save state, and buttons for the whole project.

import { useId } from "react";
import { CommandButton } from "../commands/CommandButton";
import { perform } from "../commands/commands";
import { close, newPage } from "../project/pages";
import { set, useStudio } from "./store";

export function TopBar() {
  const connected = useStudio((state) => state.connected);
  const signedOut = useStudio((state) => state.signedOut);
  const project = useStudio((state) => state.hello?.project.name ?? "");
  return (
    <header className="top-bar">
      <button className="brand plain" onClick={() => set({ start: true })} title={`Project ${project}: gallery and pages`}>
        <span className="brand-mark" aria-hidden="true">▦</span> rowgrad <span className="brand-project">{project}</span>
      </button>
      <Tabs />
      <div className="top-tools">
        <SaveState />
        {!connected && (
          <span className="offline" role="status">
            not connected; edits are kept here
            {signedOut && <>: run <code>rowgrad studio --link</code> and open its address in this browser</>}
          </span>
        )}
        <CommandButton id="undo" text="↶" />
        <CommandButton id="redo" text="↷" />
        <CommandButton id="commands" text="Search" />
        <CommandButton id="export" text="Export" />
        <CommandButton id="theme" text="◐" />
        <CommandButton id="keys" text="?" />
      </div>
    </header>
  );
}

function Tabs() {
  const tabs = useStudio((state) => state.tabs);
  const active = useStudio((state) => (state.start ? null : state.active));
  const docs = useStudio((state) => state.docs);
  const shown = FEATURES.tabs ? tabs : tabs.filter((name) => name === active);
  const id = useId();
  return (
    <div className="tabs">
      {active && <h1 className="unseen">{active}</h1>}
      {/* A tablist may contain tabs only, and the close buttons are between them: so it owns the tabs through aria-owns. */}
      {shown.length > 0 && <span role="tablist" aria-label="Pages" aria-owns={shown.map((_, k) => `${id}${k}`).join(" ")} />}
      <div className="tab-list">
        {shown.map((name, k) => {
          const phase = docs[name]?.run?.phase;
          const faulty = Object.keys(docs[name]?.checked.errors ?? {}).length > 0;
          return (
            <div key={name} className={`tab${name === active ? " active" : ""}`}>
              <button role="tab" id={`${id}${k}`} aria-selected={name === active} onClick={() => set({ active: name, start: false })} onDoubleClick={() => set({ dialog: { kind: "rename", page: name } })}>
                {phase === "running" && <span className="dot running" aria-label="running" role="img" />}
                {phase === "paused" && <span className="dot paused" aria-label="paused" role="img" />}
                {faulty && <span className="dot faulty" aria-label="has errors" role="img" />}
                {name}
              </button>
              <button className="tab-close" aria-label={`Close ${name}`} onClick={() => close(name)}>×</button>
            </div>
          );
        })}
      </div>
      {FEATURES.tabs && <button className="plain" aria-label="New page" title="New page" onClick={() => void newPage()}>+</button>}
    </div>
  );
}

const SAVE_TEXT = { saved: "saved", waiting: "saving …", saving: "saving …", failed: "not saved" };

function SaveState() {
  const saving = useStudio((state) => state.docs[state.active ?? ""]?.saving ?? null);
  if (!saving) return null;
  return (
    <button className={`save-state plain ${saving}`} data-saving={saving} onClick={() => perform("save")} title={FEATURES.autosave ? "Every edit is saved by itself" : "Save now (Ctrl+S)"}>
      {saving === "waiting" && !FEATURES.autosave ? SAVE_TEXT.failed : SAVE_TEXT[saving]}
    </button>
  );
}
