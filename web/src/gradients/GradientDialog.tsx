// Flip to gradient: adds the blocks that compute the gradients of some pins with respect to others.

import { useReactFlow } from "@xyflow/react";
import { useMemo, useState } from "react";
import { doc, get, server } from "../app/store";
import { notify } from "../messages/messages";
import { change, select } from "../page/actions";
import * as edit from "../page/edit";
import { idsOf, parseEnd } from "../page/page";
import type { Block } from "../transport/protocol";
import { messageOf } from "../transport/protocol";
import { CloseDialog, DialogFrame, closeDialog } from "../ui/DialogFrame";
import type { GradientPin } from "./pins";
import { guess, movedPins, outputPins, typedPins, upstream } from "./pins";

export function GradientDialog() {
  const open = doc();
  const flow = useReactFlow();
  const pins = useMemo(() => (open ? outputPins(open.page, open.checked) : []), []); // eslint-disable-line
  const typed = useMemo(() => (open ? typedPins(open.page, open.checked, get().catalog) : []), []); // eslint-disable-line
  const first = useMemo(() => (open ? guess(open.page, pins, typed, open.blocks) : { outputs: [], inputs: [] }), []); // eslint-disable-line
  const [outputs, setOutputs] = useState<ReadonlySet<string>>(new Set(first.outputs));
  const [inputs, setInputs] = useState<ReadonlySet<string>>(new Set(first.inputs));
  const [failure, setFailure] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  if (!open || !FEATURES.flip) return <CloseDialog />;
  const before = upstream(open.page, [...outputs].map((end) => parseEnd(end).block));
  const all = [...pins, ...typed];
  const sources = outputs.size ? all.filter((pin) => inputs.has(pin.end) || (before.has(pin.block) && !outputs.has(pin.end))) : all;
  const flip = async () => {
    setBusy(true);
    setFailure(null);
    try {
      const args = { page: open.page, outputs: [...outputs], inputs: [...inputs] };
      const { blocks, gradients } = await server().request<{ blocks: Block[]; gradients: string[] }>("gradients", args);
      if (doc(open.name)?.page !== args.page) throw new Error("The page changed meanwhile; flip it again.");
      change(`flip ${args.outputs.join(", ")} to gradient`, (page) => edit.putBlocks(page, blocks), false, open.name);
      const known = idsOf(args.page);
      const ids = blocks.map((block) => block.id).filter((id) => !known.has(id));
      select(ids);
      closeDialog();
      const fetched = blocks.find((block) => open.checked.sessions.includes(block.id))?.id;
      const moved = movedPins(args.page, blocks);
      const shared = moved.length ? ` Now in Const blocks that the page and its gradient share: ${moved.join(", ")}.` : "";
      notify("info", `New blocks compute the gradients: ${gradients.join(", ")}.${shared} ${fetched ? `${fetched} fetches them: ` : ""}Run shows their values.`);
      // Once the canvas has rendered them.
      setTimeout(() => void flow.fitView({ nodes: ids.map((id) => ({ id })), padding: 0.2, maxZoom: 1, duration: 200 }), 80);
    } catch (error) {
      setFailure(messageOf(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <DialogFrame title="Flip to gradient" wide>
      <p className="quiet">Adds blocks that compute the gradient of the outputs with respect to the inputs. Typed values that the gradient needs too, such as ids, move to Const blocks wired to both: change them there. Attributes are copied: after changing one, flip again.</p>
      <div className="flip">
        <PinList title="Gradient of these outputs" pins={pins} chosen={outputs} change={setOutputs} />
        <PinList title="With respect to these inputs" pins={sources} chosen={inputs} change={setInputs} />
      </div>
      {failure && <p className="fault" role="alert">{failure}</p>}
      <footer className="dialog-foot">
        <button onClick={closeDialog}>Cancel</button>
        <button className="primary" disabled={busy || !outputs.size || !inputs.size} onClick={() => void flip()}>Add the gradient blocks</button>
      </footer>
    </DialogFrame>
  );
}

function PinList({ title, pins, chosen, change: set }: { title: string; pins: GradientPin[]; chosen: ReadonlySet<string>; change: (ends: ReadonlySet<string>) => void }) {
  const [typed, setTyped] = useState("");
  const shown = pins.filter((pin) => `${pin.end} ${pin.info.text}`.toLowerCase().includes(typed.toLowerCase()));
  // Initially selected pins come first, so that they need no search.
  const ordered = [...shown.filter((pin) => chosen.has(pin.end)), ...shown.filter((pin) => !chosen.has(pin.end))];
  const [order] = useState(() => new Map(ordered.map((pin, k) => [pin.end, k])));
  const placed = [...shown].sort((a, b) => (order.get(a.end) ?? Infinity) - (order.get(b.end) ?? Infinity) || 0);
  const toggle = (end: string) => {
    const next = new Set(chosen);
    if (!next.delete(end)) next.add(end);
    set(next);
  };
  return (
    <fieldset>
      <legend>{title} ({chosen.size})</legend>
      <input type="search" aria-label={`Filter: ${title}`} placeholder="Filter" value={typed} onChange={(event) => setTyped(event.target.value)} />
      <div className="flip-pins">
        {placed.map((pin) => (
          <label key={pin.end} data-end={pin.end}>
            <input type="checkbox" checked={chosen.has(pin.end)} onChange={() => toggle(pin.end)} /> <span>{pin.end}</span> <span className="quiet">{pin.info.text}{pin.info.ref ? " Variable" : pin.typed ? " typed" : ""}</span>
          </label>
        ))}
        {!placed.length && <p className="quiet">No pin fits.</p>}
      </div>
    </fieldset>
  );
}
