import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";
import { scopeToStudio } from "./scope";
import { featureConstants } from "./switches";

// One script and one style sheet under fixed names: the server serves exactly these files, and a build of the same
// source gives the same bytes, so that the committed files can be compared with a fresh build.
export default defineConfig(({ mode }) => ({
  base: "./",
  plugins: [react()],
  define: featureConstants(mode),
  css: { postcss: { plugins: [scopeToStudio()] } },
  build: {
    outDir: mode === "switches" ? "../build/web-switches" : "../src/rowgrad/studio/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    chunkSizeWarningLimit: 2000,
    rollupOptions: {
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
