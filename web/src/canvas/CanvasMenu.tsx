// The context menus of the canvas, of blocks, notes, wires and pins.

import { AlignCenterHorizontal, AlignCenterVertical, AlignEndHorizontal, AlignEndVertical, AlignHorizontalDistributeCenter, AlignStartHorizontal, AlignStartVertical, AlignVerticalDistributeCenter, Cable, CircleHelp, ClipboardPaste, Copy, CopyPlus, Eraser, EyeOff, FlipHorizontal2, Frame, LayoutDashboard, Maximize, Pencil, Play, Plus, Scissors, SlidersHorizontal, StickyNote, Table2, TextCursorInput, Trash2, Unplug } from "lucide-react";
import type { MenuTarget } from "../app/store";
import { doc, get, set, useStudio } from "../app/store";
import { inputOf, outputOf } from "../blocks/pins";
import { pasteAt } from "../clipboard/clipboard";
import { commandItem } from "../commands/menus";
import { change, setValue, wireOf } from "../page/actions";
import * as edit from "../page/edit";
import { blockOf, endText, endsAt, parseEnd } from "../page/page";
import { run } from "../run/runs";
import type { MenuEntry } from "../ui/Menu";
import { MenuAt } from "../ui/Menu";
import { takesLiteral } from "../values/literals";

type Point = readonly [number, number];

export function CanvasMenu() {
  const menu = useStudio((state) => state.menu);
  if (!menu) return null;
  const entries = entriesOf(menu.target, menu.at, menu.place);
  if (!entries.length) return null;
  return <MenuAt key={menu.at.join(" ")} label={LABELS[menu.target.kind]} at={menu.at} entries={entries} onClose={() => set({ menu: null })} />;
}

const LABELS: Record<MenuTarget["kind"], string> = { canvas: "Canvas", block: "Block", note: "Note", wire: "Wire", pin: "Pin" };

function entriesOf(target: MenuTarget, at: Point, place: Point): MenuEntry[] {
  switch (target.kind) {
    case "canvas":
      return canvasEntries(at, place);
    case "block":
      return blockEntries(target.block);
    case "note":
      return [commandItem("edit-note", Pencil), commandItem("duplicate", CopyPlus), commandItem("copy", Copy), "line", commandItem("delete", Trash2, "Delete", { danger: true })];
    case "wire":
      return wireEntries(target.wire, at, place);
    case "pin":
      return pinEntries(target, at, place);
  }
}

function canvasEntries(at: Point, place: Point): MenuEntry[] {
  return [
    { key: "add", title: "Place a block …", icon: Plus, run: () => set({ finder: { at, place, drag: null, wire: null } }) },
    commandItem("note", StickyNote, "Add a note"),
    { key: "paste", title: "Paste here", icon: ClipboardPaste, keys: "Ctrl+V", disabled: !FEATURES.copyPaste, run: () => void pasteAt([place[0], place[1]]) },
    "line",
    commandItem("select-all"),
    commandItem("layout", LayoutDashboard),
    commandItem("fit", Maximize),
    "line",
    commandItem("run", Play),
  ];
}

function arrangeEntries(): MenuEntry[] {
  return [
    commandItem("align-left", AlignStartVertical),
    commandItem("align-centre", AlignCenterVertical),
    commandItem("align-right", AlignEndVertical),
    commandItem("align-top", AlignStartHorizontal),
    commandItem("align-middle", AlignCenterHorizontal),
    commandItem("align-bottom", AlignEndHorizontal),
    "line",
    commandItem("spread-across", AlignHorizontalDistributeCenter),
    commandItem("spread-down", AlignVerticalDistributeCenter),
    "line",
    commandItem("layout", LayoutDashboard, "Lay out the selected blocks"),
  ];
}

function blockEntries(id: string): MenuEntry[] {
  const open = doc();
  const block = open && blockOf(open.page, id);
  if (!open || !block) return [];
  const several = open.blocks.size > 1;
  const record = get().catalog.find(block.op);
  const single: MenuEntry[] = several
    ? [{ key: "arrange", title: "Align and distribute", icon: AlignStartVertical, entries: arrangeEntries() }]
    : [
        ...(record?.runs ? [{ key: "run", title: `Run ${id}`, icon: Play, run: () => void run("once", [id]) }] : []),
        commandItem("edit-block", SlidersHorizontal, "Edit values"),
        commandItem("rename-block", TextCursorInput, "Rename"),
        commandItem("wire", Cable, "Wire …"),
      ];
  return [
    ...single,
    commandItem("flip", FlipHorizontal2, "Flip to gradient …"),
    commandItem("frame", Frame, several ? "Frame the selected blocks" : "Frame"),
    "line",
    commandItem("cut", Scissors),
    commandItem("copy", Copy),
    commandItem("duplicate", CopyPlus),
    commandItem("copy-parameters", undefined, "Copy parameters"),
    commandItem("paste-parameters", undefined, "Paste parameters"),
    "line",
    commandItem("help", CircleHelp, "Help"),
    commandItem("delete", Trash2, "Delete", { danger: true }),
  ];
}

function wireEntries(id: string, at: Point, place: Point): MenuEntry[] {
  const open = doc();
  const wire = open && wireOf(open.page, id);
  if (!wire) return [];
  return [
    { key: "insert", title: "Insert a block …", icon: Plus, run: () => set({ finder: { at, place, drag: null, wire: id } }) },
    {
      key: "hide",
      title: wire.hidden ? "Show the wire" : "Hide the wire",
      icon: EyeOff,
      disabled: !FEATURES.hiddenWires,
      run: () => change(`${wire.hidden ? "show" : "hide"} wires of ${wire.to}.${wire.pin}`, (page) => edit.setHidden(page, wire.to, wire.pin, !wire.hidden)),
    },
    { key: "cut-wire", title: "Cut the wire", icon: Unplug, danger: true, run: () => change(`cut ${endText(wire.from)}`, (page) => edit.disconnect(page, wire)) },
  ];
}

function pinEntries({ block: id, pin: name, side }: Extract<MenuTarget, { kind: "pin" }>, at: Point, place: Point): MenuEntry[] {
  const open = doc();
  const block = open && blockOf(open.page, id);
  const record = get().catalog.find(block?.op ?? "");
  const end = parseEnd(`x.${name}`);
  const pin = side === "to" ? inputOf(record, name) : outputOf(record, end.pin);
  if (!open || !block || !pin) return [];
  const finder: MenuEntry = {
    key: "connect",
    title: side === "from" ? "Wire to a new block …" : "Wire from a new block …",
    icon: Plus,
    run: () => set({ finder: { at, place, drag: { end: { ...end, block: id }, side }, wire: null } }),
  };
  if (side === "from") {
    const result = open.run?.results[id]?.[end.pin];
    return [
      finder,
      commandItem("wire", Cable, "Wire to a block of the page …"),
      { key: "result", title: "Show the result", icon: Table2, disabled: !result, run: () => set({ shown: { block: id, pin: end.pin, entry: Array.isArray(result) ? (end.index ?? 0) : null }, bottom: "results", bottomOpen: true }) },
    ];
  }
  const wired = endsAt(block, name).length;
  return [
    finder,
    { key: "value", title: "Edit the value …", icon: Pencil, disabled: wired > 0 || !takesLiteral(pin), run: () => set({ dialog: { kind: "value", block: id, pin: name } }) },
    { key: "clear", title: "Clear the value", icon: Eraser, disabled: block.values?.[name] === undefined, run: () => setValue(id, name, undefined) },
    {
      key: "cut-wires",
      title: wired > 1 ? `Cut ${wired} wires` : "Cut the wire",
      icon: Unplug,
      danger: true,
      disabled: !wired,
      run: () => change(`cut wires of ${id}.${name}`, (page) => endsAt(block, name).reduceRight((next, _, k) => edit.disconnect(next, { to: id, pin: name, place: k }), page)),
    },
  ];
}
