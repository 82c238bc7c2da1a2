// Features can be left out (`rowgrad studio --without export,import`), for lessons and for tests of the tests.

import { get, useStudio } from "./store";

export const FEATURES = [
  "align", "attributes", "autosave", "command-menu", "conflicts", "copy-paste", "costs", "drafts", "engines", "errors", "export", "flip", "frames",
  "gallery", "grid-snap", "heat-map", "help", "hidden-wires", "history", "import", "keyboard", "layout", "list-pins", "literals",
  "messages", "minimap", "multi-select", "notes", "palette", "palette-drag", "palette-search", "pause", "pin-roles", "rate", "refusals", "rename", "results",
  "run", "search", "snapshots", "sparse-editor", "spreadsheet", "stale", "steps", "tabs", "theme", "trace", "trend", "undo",
  "upload", "wire-shapes", "wires", "zoom",
] as const; // prettier-ignore

export type Feature = (typeof FEATURES)[number];

export function has(feature: Feature): boolean {
  return !get().hello?.without.includes(feature);
}

export function useFeature(feature: Feature): boolean {
  return useStudio((state) => !state.hello?.without.includes(feature));
}
