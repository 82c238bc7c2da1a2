// What a window keeps over a reload: the steps of each page, and edits the server has not got yet.

import type { Kept } from "../model/history";
import { keep, unkeep } from "../model/history";
import type { History } from "../model/history";
import type { Doc } from "./store";
import { get } from "./store";

interface Draft {
  revision: string;
  kept: Kept;
}

function keyOf(name: string): string {
  return `rowgrad:${get().hello?.project.folder ?? ""}:${name}`;
}

export function keepDoc(doc: Doc): void {
  for (const most of [60, 15, 2]) {
    const draft: Draft = { revision: doc.revision, kept: keep(doc.history, most) };
    try {
      sessionStorage.setItem(keyOf(doc.name), JSON.stringify(draft));
      return;
    } catch {
      // The browser's room for this is small; fewer steps may fit.
    }
  }
}

export function kept(name: string): { revision: string; history: History } | null {
  try {
    const text = sessionStorage.getItem(keyOf(name));
    if (!text) return null;
    const draft = JSON.parse(text) as Draft;
    return { revision: draft.revision, history: unkeep(draft.kept) };
  } catch {
    return null;
  }
}

export function forget(name: string): void {
  try {
    sessionStorage.removeItem(keyOf(name));
  } catch {
    // Without storage there is nothing to forget.
  }
}

/** Tabs and settings of this window. */
export function keepWindow(): void {
  const { tabs, active, theme, minimap, snapping, paletteOpen, inspectorOpen, bottomOpen, bottom } = get();
  try {
    sessionStorage.setItem(keyOf("*window"), JSON.stringify({ tabs, active, minimap, snapping, paletteOpen, inspectorOpen, bottomOpen, bottom }));
    localStorage.setItem("rowgrad:theme", theme);
  } catch {
    // A window without storage begins anew after a reload.
  }
}

export function keptWindow(): Record<string, unknown> {
  try {
    const theme = localStorage.getItem("rowgrad:theme");
    const found = JSON.parse(sessionStorage.getItem(keyOf("*window")) ?? "{}") as Record<string, unknown>;
    return theme ? { ...found, theme } : found;
  } catch {
    return {};
  }
}
