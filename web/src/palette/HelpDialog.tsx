// An op's reference, from its record: description, pins, attributes, an example.

import { doc, get } from "../app/store";
import { pinText } from "../blocks/pins";
import { place } from "../page/actions";
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
      <div className="help">
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
        {doc() && <button onClick={put}>Place it</button>}
      </div>
    </DialogFrame>
  );
}
