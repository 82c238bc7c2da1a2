// The value of a pin: as text, as a spreadsheet, pasted, or from a file. Applying it is one history step.

import { useEffect, useRef, useState } from "react";
import { useDoc, useStudio } from "../app/store";
import { inputOf } from "../blocks/pins";
import { setValue } from "../page/actions";
import { blockOf } from "../page/page";
import type { Json } from "../transport/protocol";
import { messageOf } from "../transport/protocol";
import { CloseDialog, DialogFrame, closeDialog } from "../ui/DialogFrame";
import { Tabs } from "../ui/Tabs";
import { ApplyButtons, applyOnCtrlEnter } from "./ApplyButtons";
import type { Grid } from "./grid";
import { faultyPlace } from "./grid";
import { GridEditor } from "./GridEditor";
import { LargeGrid } from "./LargeGrid";
import { dtypeOf, dtypesOf } from "./literals";
import type { Draft, UploadedArray } from "./requests";
import { draftOf, readFile, readGrid, readText } from "./requests";

type Part = "text" | "grid" | "paste" | "file";

export function ValueDialog({ block, pin }: { block: string; pin: string }) {
  const open = useDoc();
  const catalog = useStudio((state) => state.catalog);
  const all = useStudio((state) => state.hello?.dtypes ?? []);
  const found = open ? blockOf(open.page, block) : undefined;
  const input = inputOf(catalog.find(found?.op ?? ""), pin);
  const before = found?.values?.[pin];
  const [draft, setDraft] = useState<Draft | null>(null);
  const [part, setPart] = useState<Part | null>(null);
  const [text, setText] = useState("");
  const [grid, setGrid] = useState<Grid | null>(null);
  const [pasted, setPasted] = useState("");
  const [dtype, setDtype] = useState(found && input ? dtypeOf(found, input) : "");
  const [touched, setTouched] = useState(false);
  const [arrays, setArrays] = useState<UploadedArray[] | null>(null);
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState<string | null>(null);
  const [wrong, setWrong] = useState<number[] | null>(null); // the cell the fault is about

  const reject = (message: string) => {
    setFault(message);
    setWrong(faultyPlace(message));
  };
  /** Do something that may fail; null if it did, with the fault shown. */
  const attempt = async <T,>(work: () => Promise<T>): Promise<{ made: T } | null> => {
    setBusy(true);
    setFault(null);
    setWrong(null);
    try {
      return { made: await work() };
    } catch (error) {
      reject(messageOf(error));
      return null;
    } finally {
      setBusy(false);
    }
  };
  const adopt = async (value: Json | undefined, next: Part | null) => {
    const reply = await attempt(() => draftOf(value));
    if (!reply) return;
    const { made } = reply;
    setDraft(made);
    setText(made.text ?? "");
    setGrid(made.grid);
    if (value !== undefined) setDtype(made.dtype);
    setTouched(false);
    setPart((was) => next ?? was ?? (FEATURES.spreadsheet && (made.info?.shape?.length || !FEATURES.literals) ? "grid" : FEATURES.literals ? "text" : "file"));
  };
  useEffect(() => void adopt(before, null), []); // the value from when the dialog opened

  if (!found || !input) return <CloseDialog />;

  /** The value as currently edited. */
  const settled = async (): Promise<Json | undefined> => {
    if (part === "paste" && pasted.trim()) return readText(pasted, dtype);
    if (!touched || !draft) return draft?.value;
    if (part === "grid" && grid) return readGrid(grid, dtype);
    return text.trim() || part === "text" ? readText(text, dtype) : draft.value;
  };
  const show = async (next: Part) => {
    if (next === part || busy) return;
    const isEdited = touched && (part === "text" || part === "grid");
    if (!isEdited) {
      setFault(null);
      setPart(next);
      return;
    }
    const reply = await attempt(settled);
    if (reply) await adopt(reply.made, next);
  };
  const read = async () => {
    const reply = await attempt(() => readText(pasted, dtype));
    if (!reply) return;
    setPasted("");
    await adopt(reply.made, "grid");
  };
  const upload = async (file: File) => {
    setPart("file");
    setArrays(null);
    const reply = await attempt(() => readFile(file, dtype));
    if (!reply) return;
    if (reply.made.length === 1) await adopt(reply.made[0]!.value, FEATURES.spreadsheet ? "grid" : null);
    else setArrays(reply.made);
  };
  const apply = async () => {
    if (busy || !draft) return;
    const reply = await attempt(settled);
    if (!reply) return;
    if (JSON.stringify(reply.made) !== JSON.stringify(before)) setValue(block, pin, reply.made);
    closeDialog();
  };

  const large = draft !== null && draft.grid === null;
  const label = `${block}.${pin}`;
  const dtypes = dtypesOf(input, all);
  const parts: [Part, string][] = [
    ...(FEATURES.literals ? ([["text", "Text"]] as [Part, string][]) : []),
    ...(FEATURES.spreadsheet ? ([["grid", "Grid"], ["paste", "Paste"]] as [Part, string][]) : []),
    ...(FEATURES.upload ? ([["file", "File"]] as [Part, string][]) : []),
  ];
  return (
    <DialogFrame title={`Value of ${label}`} wide>
      <div
        className="value-editor"
        onKeyDown={applyOnCtrlEnter}
        onDragOver={(event) => {
          event.preventDefault();
          event.stopPropagation();
        }}
        onDrop={(event) => {
          event.preventDefault();
          event.stopPropagation();
          const file = event.dataTransfer.files[0];
          if (file && FEATURES.upload) void upload(file);
        }}
      >
        <div className="value-top">
          <Tabs label="How to edit" tabs={parts} now={part} choose={(next) => void show(next)} />
          <span className="value-info" role="status" aria-label="Dtype and shape">{draft?.info ? `${touched ? "was " : ""}${draft.info.text}` : "nothing yet"}</span>
          <label className="value-dtype">
            Dtype
            <select
              value={dtype}
              aria-label="Dtype"
              disabled={large && part !== "paste" && part !== "file" && !touched}
              onChange={(event) => {
                setDtype(event.target.value);
                setTouched(true);
              }}
            >
              <option value="">as typed</option>
              {[...new Set(dtype ? [...dtypes, dtype] : dtypes)].map((name) => <option key={name}>{name}</option>)}
            </select>
          </label>
        </div>
        {part === "text" && draft && (
          <textarea
            className="value-text"
            rows={8}
            spellCheck={false}
            value={text}
            aria-label={`Literal of ${label}`}
            placeholder={draft.text === null ? `${draft.start}\n\nIts text is too long to be edited. What you type here takes its place.` : "3   {1,2}   [[1, 2], [3, 4]]   {true,false}   {1+2j}   \"text\""}
            onChange={(event) => {
              setText(event.target.value);
              setTouched(event.target.value !== (draft.text ?? "") || dtype !== draft.dtype);
            }}
          />
        )}
        {part === "grid" && draft && grid && (
          <GridEditor
            label={`Cells of ${label}`}
            grid={grid}
            dtype={dtype}
            faulty={wrong}
            reject={reject}
            change={(next) => {
              setGrid(next);
              setTouched(true);
              setFault(null);
              setWrong(null);
            }}
          />
        )}
        {part === "grid" && draft?.info && large && draft.value !== undefined && <LargeGrid key={JSON.stringify(draft.value)} label={`Cells of ${label}`} value={draft.value} info={draft.info} />}
        {part === "paste" && (
          <>
            <textarea className="value-text" rows={10} spellCheck={false} autoFocus value={pasted} aria-label="Pasted text" placeholder="Cells of a spreadsheet, CSV, JSON, NumPy or a literal" onChange={(event) => setPasted(event.target.value)} />
            <p><button onClick={() => void read()} disabled={busy || !pasted.trim()}>Read into the grid</button></p>
          </>
        )}
        {part === "file" && <FileTab arrays={arrays} busy={busy} upload={(file) => void upload(file)} take={(array) => void adopt(array.value, FEATURES.spreadsheet ? "grid" : "file")} />}
        {fault && <p className="fault value-fault" role="alert"><b>{label}:</b> {fault}</p>}
        <ApplyButtons apply={apply} disabled={busy || !draft} />
      </div>
    </DialogFrame>
  );
}

const ENDINGS = ".npy,.npz,.csv,.tsv";

interface FileProps {
  arrays: UploadedArray[] | null;
  busy: boolean;
  upload: (file: File) => void;
  take: (array: UploadedArray) => void;
}

function FileTab({ arrays, busy, upload, take }: FileProps) {
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
          if (file) upload(file);
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
