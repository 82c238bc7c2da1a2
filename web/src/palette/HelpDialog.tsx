// An op's reference, from its record: description, pins, attributes, an example.

import { doc, get, server } from "../app/store";
import { pinText } from "../blocks/pins";
import { freePlace } from "../canvas/layout";
import { attempt } from "../messages/messages";
import { change, focusBlock, place, select, viewport } from "../page/actions";
import * as edit from "../page/edit";
import { newPage } from "../project/pages";
import type { Block } from "../transport/protocol";
import { DialogFrame, closeDialog } from "../ui/DialogFrame";

export function HelpDialog({ op }: { op: string }) {
  const record = get().catalog.find(op);
  if (!record) return null;
  const put = () => {
    closeDialog();
    place(record.name);
  };
  return (
    <DialogFrame title={record.name} wide>
      <div className="help" tabIndex={-1} data-first>
        {record.doc.split("\n\n").map((text, k) => <p key={k}>{text.replace(/`/g, "")}</p>)}
        {record.aliases.length > 0 && <p>Also called {record.aliases.join(", ")}.</p>}
        <h3>Inputs</h3>
        <ul>{record.inputs.map((pin) => <li key={pin.name}>{pinText(pin)}</li>)}</ul>
        <h3>Outputs</h3>
        <ul>{record.outputs.map((pin) => <li key={pin.name}>{pinText(pin)}</li>)}</ul>
        {Object.keys(record.attrs).length > 0 && (
          <>
            <h3>Attributes</h3>
            <ul>
              {Object.entries(record.attrs).map(([name, attr]) => (
                <li key={name}>{name} = {JSON.stringify(attr.default)}{attr.choices.length ? `, one of ${attr.choices.join(", ")}` : ""}</li>
              ))}
            </ul>
          </>
        )}
        {record.differentiable.length > 0 && <p>Gradients flow to {record.differentiable.join(", ")}.</p>}
        <h3>Example</h3>
        <pre>{record.example}</pre>
        <footer className="dialog-foot">
          {doc() && <button onClick={put}>Place the block</button>}
          {FEATURES.help && <button className="primary" onClick={() => void insertExample(record.name)}>Insert this example</button>}
        </footer>
      </div>
    </DialogFrame>
  );
}

/** Add the blocks of an op's example to the page, or to a new page if none is open. */
async function insertExample(op: string): Promise<void> {
  closeDialog();
  if (get().start || !doc()) await newPage();
  const open = doc();
  if (!open) return;
  const { catalog } = get();
  const at = freePlace(open.page, catalog, viewport.centre(), catalog.find(op));
  const reply = await attempt(() => server().request<{ blocks: Block[] }>("example", { page: open.page, op, at }));
  if (!reply || doc(open.name)?.page !== open.page) return;
  focusBlock(reply.blocks[0]!.id);
  change(`example of ${op}`, (page) => edit.putBlocks(page, reply.blocks), false, open.name);
  select(reply.blocks.map((block) => block.id));
}
