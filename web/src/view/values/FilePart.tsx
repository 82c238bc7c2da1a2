// Arrays out of a file: chosen, or dropped anywhere on the dialog. A file of several lets one choose.

import { useRef } from "react";
import type { Uploaded } from "./asking";

export const ENDINGS = ".npy,.npz,.csv,.tsv";

interface Props {
  arrays: Uploaded[] | null;
  busy: boolean;
  bring: (file: File) => void;
  take: (array: Uploaded) => void;
}

export function FilePart({ arrays, busy, bring, take }: Props) {
  const field = useRef<HTMLInputElement>(null);
  return (
    <div className="value-file">
      <p>
        <button onClick={() => field.current?.click()} disabled={busy}>Choose a file …</button> <span className="quiet">or drop one here: .npy, .npz, .csv, .tsv</span>
      </p>
      <input
        ref={field}
        type="file"
        accept={ENDINGS}
        hidden
        aria-label="Array file"
        onChange={(event) => {
          const file = event.target.files?.[0];
          event.target.value = ""; // the same file may be chosen again
          if (file) bring(file);
        }}
      />
      {busy && <p role="status">Reading …</p>}
      {arrays && (
        <ul aria-label="Arrays of the file">
          {arrays.map((array) => (
            <li key={array.name}>
              <button onClick={() => take(array)}>{array.name || "(no name)"}</button> <code>{array.info.text}</code>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
