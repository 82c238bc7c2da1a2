import { fileURLToPath } from "node:url";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";
import { scopeToStudio } from "./scope";
import { featureConstants } from "./switches";

// One script and one style sheet under fixed names: the server serves exactly these files, and a build of the same
// source gives the same bytes, so that the committed files can be compared with a fresh build.
export default defineConfig(({ mode }) => ({
  base: "./",
  plugins: [react()],
  define: featureConstants(mode),
  // Radix's dialogs and menus can lock the page's scroll bars with this package. Ours never do: the studio does not
  // scroll, and the package inserts style elements, which the content security policy forbids.
  // React Flow moves and zooms with d3's transitions, which can also change colours; nothing here does.
  resolve: {
    alias: Object.fromEntries(
      [["react-remove-scroll", "noScrollLock"], ["d3-color", "noColours"]].map(([name, file]) => [name, fileURLToPath(new URL(`src/ui/${file}.ts`, import.meta.url))]),
    ),
  },
  test: { css: { include: [/theme/] } }, // a test reads the design tokens
  css: { postcss: { plugins: [scopeToStudio()] } },
  build: {
    outDir: mode === "switches" ? "../build/web-switches" : "../src/rowgrad/studio/static",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome123", "firefox128", "safari17.5"], // the first with light-dark() and nested rules
    modulePreload: false,
    cssCodeSplit: false,
    chunkSizeWarningLimit: 2000,
    rollupOptions: {
      // Radix names its functions with calls of `__name`, which would keep the functions that nothing uses.
      treeshake: { manualPureFunctions: ["__name", "createContext", "forwardRef", "memo"] },
      input: { studio: "src/main.tsx" },
      // A notebook imports the same file for its `render`.
      preserveEntrySignatures: "exports-only",
      output: {
        entryFileNames: "studio.js",
        assetFileNames: "studio[extname]",
        codeSplitting: false,
      },
    },
  },
}));
