// The top bar: open pages as tabs, save state, and buttons for the whole project.

import { Check, CloudOff, Download, HelpCircle, LoaderCircle, Menu as MenuIcon, Monitor, Moon, Plus, Redo2, Search, Sun, TriangleAlert, Undo2, X } from "lucide-react";
import { useEffect, useId, useRef } from "react";
import { CommandButton } from "../commands/CommandButton";
import { perform } from "../commands/commands";
import { keysText } from "../commands/keyboard";
import { commandItem } from "../commands/menus";
import { lacksValue } from "../blocks/pins";
import { blockOf } from "../page/page";
import { close, newPage } from "../project/pages";
import type { MenuEntry } from "../ui/Menu";
import { Menu } from "../ui/Menu";
import { Tip } from "../ui/Tip";
import { BrandMark } from "./Brand";
import type { Theme } from "./store";
import { get, set, useStudio } from "./store";

export function TopBar() {
  const connected = useStudio((state) => state.connected);
  const signedOut = useStudio((state) => state.signedOut);
  const project = useStudio((state) => state.hello?.project.name ?? "");
  const theme = useStudio((state) => state.theme);
  return (
    <header className="top-bar">
      <button className="brand plain" onClick={() => set({ start: true })} title={`Project ${project}: gallery and pages`}>
        <BrandMark /> <span className="brand-name">rowgrad</span> <span className="brand-project">{project}</span>
      </button>
      <Tabs />
      <div className="top-tools">
        <SaveState />
        {!connected && (
          <span className="offline" role="status">
            <CloudOff size={14} aria-hidden="true" /> not connected; edits are kept here
            {signedOut && <>: run <code>rowgrad studio --link</code> and open its address in this browser</>}
          </span>
        )}
        <CommandButton id="undo" icon={Undo2} />
        <CommandButton id="redo" icon={Redo2} />
        <button className="search-field" onClick={() => perform("commands")} data-command="commands" disabled={!FEATURES.commandMenu}>
          <Search size={14} aria-hidden="true" /> <span>Search</span> <kbd aria-hidden="true">{keysText("Ctrl+k")}</kbd>
        </button>
        <CommandButton id="export" icon={Download} text="Export" className="wide-only" />
        <CommandButton id="theme" icon={THEME_ICONS[theme]} className="wide-only" />
        <CommandButton id="keys" icon={HelpCircle} className="wide-only" />
        <Menu entries={mainMenu} align="end">
          <button className="plain icon" aria-label="Menu"><MenuIcon size={17} aria-hidden="true" /></button>
        </Menu>
      </div>
    </header>
  );
}

const THEME_ICONS = { system: Monitor, light: Sun, dark: Moon };
const THEME_TITLES: Record<Theme, string> = { system: "Like the system", light: "Light", dark: "Dark" };

function mainMenu(): MenuEntry[] {
  const { paletteOpen, inspectorOpen, bottomOpen, minimap, snapping, theme } = get();
  return [
    commandItem("start"),
    commandItem("new-page", Plus),
    commandItem("rename-page"),
    commandItem("copy-page"),
    commandItem("import"),
    commandItem("export", Download, "Export …"),
    "line",
    commandItem("palette", undefined, "Palette", { checked: paletteOpen }),
    commandItem("inspector", undefined, "Inspector", { checked: inspectorOpen }),
    commandItem("bottom", undefined, "Results", { checked: bottomOpen }),
    commandItem("minimap", undefined, "Minimap of large pages", { checked: minimap }),
    commandItem("snap", undefined, "Snap to the grid", { checked: snapping }),
    {
      key: "theme",
      title: "Theme",
      icon: THEME_ICONS[theme],
      entries: (Object.keys(THEME_TITLES) as Theme[]).map((one) => ({ key: one, title: THEME_TITLES[one], checked: one === theme, disabled: !FEATURES.theme, run: () => set({ theme: one }) })),
    },
    "line",
    commandItem("layout"),
    commandItem("keys", HelpCircle),
  ];
}

function Tabs() {
  const tabs = useStudio((state) => state.tabs);
  const active = useStudio((state) => (state.start ? null : state.active));
  const docs = useStudio((state) => state.docs);
  const shown = FEATURES.tabs ? tabs : tabs.filter((name) => name === active);
  const id = useId();
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => {
    list.current?.querySelector(".active")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [active, shown.length]);
  return (
    <div className="tabs">
      {active && <h1 className="unseen">{active}</h1>}
      {/* A tablist may contain tabs only, and the close buttons are between them: so it owns the tabs through aria-owns. */}
      {shown.length > 0 && <span role="tablist" aria-label="Pages" aria-owns={shown.map((_, k) => `${id}${k}`).join(" ")} />}
      <div className="tab-list" ref={list}>
        {shown.map((name, k) => {
          const phase = docs[name]?.run?.phase;
          const { page, checked } = docs[name] ?? {};
          const faults = Object.entries(checked?.errors ?? {});
          const needs = faults.every(([block, fault]) => lacksValue(blockOf(page!, block), get().catalog.find(blockOf(page!, block)?.op ?? ""), fault.pin));
          return (
            <div key={name} className={`tab${name === active ? " active" : ""}`}>
              <button role="tab" id={`${id}${k}`} aria-selected={name === active} onClick={() => set({ active: name, start: false })} onDoubleClick={() => set({ dialog: { kind: "rename", page: name } })}>
                {phase === "running" && <span className="dot running" aria-label="running" role="img" />}
                {phase === "paused" && <span className="dot paused" aria-label="paused" role="img" />}
                {faults.length > 0 && <span className={`dot ${needs ? "needs" : "faulty"}`} aria-label={needs ? "needs values" : "has errors"} role="img" />}
                {name}
              </button>
              <button className="tab-close" aria-label={`Close ${name}`} onClick={() => close(name)}><X size={13} aria-hidden="true" /></button>
            </div>
          );
        })}
      </div>
      {FEATURES.tabs && (
        <Tip text="New page" keys={keysText("Alt+n")}>
          <button className="plain icon" aria-label="New page" onClick={() => void newPage()}><Plus size={16} aria-hidden="true" /></button>
        </Tip>
      )}
    </div>
  );
}

const SAVE_TEXT = { saved: "saved", waiting: "saving …", saving: "saving …", failed: "not saved" };
const SAVE_ICONS = { saved: Check, waiting: LoaderCircle, saving: LoaderCircle, failed: TriangleAlert };

function SaveState() {
  const saving = useStudio((state) => state.docs[state.active ?? ""]?.saving ?? null);
  if (!saving) return null;
  const failed = saving === "failed" || (saving === "waiting" && !FEATURES.autosave);
  const Icon = SAVE_ICONS[failed ? "failed" : saving];
  return (
    <button className={`save-state plain ${saving}`} data-saving={saving} onClick={() => perform("save")} title={FEATURES.autosave ? "Every edit is saved by itself" : "Save now (Ctrl+S)"}>
      <Icon size={13} aria-hidden="true" /> {failed ? SAVE_TEXT.failed : SAVE_TEXT[saving]}
    </button>
  );
}
