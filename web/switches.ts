// Parts of the page that a test can switch off, to show that it fails without them (`make test-browser-off`).
// The source asks `FEATURES.undo`. In the shipped page that is the constant `true`, and the bundler drops the other
// branch; `vite build --mode switches` reads `globalThis.rowgradFeatures` instead, which the test sets.

export const FEATURE_NAMES = [
  "align", "attributes", "autosave", "commandMenu", "conflicts", "copyPaste", "costs", "drafts", "engines", "errors", "export", "flip", "frames",
  "fixes", "gallery", "gridSnap", "heatMap", "help", "hiddenWires", "history", "import", "keyboard", "layout", "listPins", "literals",
  "makeSpace", "messages", "minimap", "multiSelect", "narrowPanels", "notes", "palette", "paletteDrag", "paletteSearch", "pause", "pinRoles", "preview", "rate", "rejections", "rename", "restoreTabs", "results",
  "run", "search", "snapshots", "sparseEditor", "spreadsheet", "stale", "steps", "tabs", "theme", "tour", "trace", "trend", "undo",
  "upload", "wireHover", "wireShapes", "wires", "zoom",
] as const; // prettier-ignore

export type Feature = (typeof FEATURE_NAMES)[number];

/** What stands for `FEATURES` in a build of this mode, for Vite's `define`. */
export function featureConstants(mode: string): Record<string, string> {
  if (mode === "switches") return { FEATURES: "globalThis.rowgradFeatures" };
  return Object.fromEntries(FEATURE_NAMES.map((name) => [`FEATURES.${name}`, "true"]));
}
