"""What of the page `--without` can leave out. The page's own list is in web/src/state/features.ts; a test compares."""

FEATURES = (
    "align", "attributes", "autosave", "command-menu", "conflicts", "copy-paste", "costs", "drafts", "engines",
    "errors", "export", "flip", "frames", "gallery", "grid-snap", "heat-map", "help", "hidden-wires", "history",
    "import", "keyboard", "layout", "list-pins", "literals", "messages", "minimap", "multi-select", "notes", "palette",
    "palette-drag", "palette-search", "pause", "pin-roles", "rate", "refusals", "rename", "results", "run", "search",
    "snapshots", "sparse-editor", "spreadsheet", "stale", "steps", "tabs", "theme", "trace", "trend", "undo", "upload",
    "wire-shapes", "wires", "zoom",
)  # fmt: skip
