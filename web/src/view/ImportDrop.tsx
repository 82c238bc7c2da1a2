// Files dropped anywhere on the window, or chosen after the command “Import”.

import { useEffect, useRef, useState } from "react";
import { importFiles, isTaken, TAKEN } from "./out/importing";

/** While files are dragged only their kinds are known. Pages and drawings have one; arrays and data have none. */
const KINDS = ["application/json", "image/svg+xml"];

export function ImportDrop() {
  const field = useRef<HTMLInputElement>(null);
  const [over, setOver] = useState(false);
  useEffect(() => {
    if (!FEATURES.import) return;
    const isFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
    const dragged = (event: DragEvent) => {
      if (!isFiles(event)) return;
      setOver([...event.dataTransfer!.items].some((item) => KINDS.includes(item.type)));
      event.preventDefault(); // or the browser would show the file in place of the studio
    };
    const left = (event: DragEvent) => {
      if (event.relatedTarget === null) setOver(false);
    };
    const dropped = (event: DragEvent) => {
      setOver(false);
      if (!isFiles(event)) return;
      const files = [...event.dataTransfer!.files];
      // What the drawing has taken for itself, as arrays that were dropped on it, is not ours.
      const ours = event.defaultPrevented ? files.filter((file) => isTaken(file.name)) : files;
      event.preventDefault();
      void importFiles(ours);
    };
    const asked = () => field.current?.click();
    window.addEventListener("dragover", dragged);
    window.addEventListener("dragleave", left);
    window.addEventListener("drop", dropped);
    window.addEventListener("rowgrad:import", asked);
    return () => {
      window.removeEventListener("dragover", dragged);
      window.removeEventListener("dragleave", left);
      window.removeEventListener("drop", dropped);
      window.removeEventListener("rowgrad:import", asked);
    };
  }, []);
  if (!FEATURES.import) return null;
  return (
    <>
      <input
        ref={field}
        type="file"
        hidden
        multiple
        accept={TAKEN.join(",")}
        aria-label="Files to import"
        onChange={(event) => {
          const files = [...(event.target.files ?? [])];
          event.target.value = ""; // so that the same file can be chosen again
          void importFiles(files);
        }}
      />
      {over && <div className="drop-over" role="status">Drop to import: a page or project (.json), a drawing (.svg, .json) with its .dat</div>}
    </>
  );
}
