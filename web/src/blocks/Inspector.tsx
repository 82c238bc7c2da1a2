// The inspector: name, pins, values, attributes and errors of the selected block.

import { ArrowDown, ArrowUp, CircleHelp, X } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { set, useDoc, useStudio } from "../app/store";
import { notify } from "../messages/messages";
import { change, renameBlock, showBlock } from "../page/actions";
import * as edit from "../page/edit";
import { blockOf, endsAt, nameFault, parseEnd, pinPath } from "../page/page";
import type { Block, OpRecord, Pin } from "../transport/protocol";
import { familyOf } from "../palette/families";
import { MiddleText } from "../ui/MiddleText";
import { Splitter } from "../ui/Splitter";
import { infoText } from "../values/format";
import { LiteralField } from "../values/LiteralField";
import { takesLiteral } from "../values/literals";
import { AttributeField } from "./AttributeField";
import { lacksValue, pinText } from "./pins";
import { SeveralBlocks } from "./SeveralBlocks";

export function Inspector() {
  const open = useDoc();
  const catalog = useStudio((state) => state.catalog);
  const box = useRef<HTMLElement>(null);
  useEffect(() => {
    const focus = (what: string) => () => box.current?.querySelector<HTMLElement>(what)?.focus();
    const inspect = focus(".pin-edit input, .pin-edit button, .attr input, .attr select");
    const rename = focus(".name-field");
    window.addEventListener("rowgrad:inspect", inspect);
    window.addEventListener("rowgrad:rename", rename);
    return () => {
      window.removeEventListener("rowgrad:inspect", inspect);
      window.removeEventListener("rowgrad:rename", rename);
    };
  }, []);
  const ids = [...(open?.blocks ?? [])];
  const several = ids.length > 1 ? ids.map((id) => blockOf(open!.page, id)).filter((one) => one !== undefined) : [];
  const block = open && ids.length === 1 ? blockOf(open.page, ids[0]!) : undefined;
  return (
    <aside className="inspector" aria-label="Inspector" ref={box}>
      <Splitter panel="inspector" label="Width of the inspector" />
      {block ? <BlockSheet key={`${open!.name} ${block.id}`} block={block} record={catalog.find(block.op)} /> : several.length > 1 ? <SeveralBlocks key={several.map(({ id }) => id).join(" ")} blocks={several} /> : <PageSheet />}
    </aside>
  );
}

function PageSheet() {
  const open = useDoc();
  if (!open) return null;
  const faults = Object.entries(open.checked.errors);
  return (
    <>
      <h2>{open.name}</h2>
      <p className="quiet">{countText(open.page.blocks.length)} / searches the palette, ? shows all keys.</p>
      {faults.length > 0 && (
        <section>
          <h3>{faults.length} {faults.length === 1 ? "block has an error" : "blocks have errors"}</h3>
          {faults.map(([id, fault]) => (
            <button key={id} className="fault" onClick={() => showBlock(id, fault.pin)}>
              <b>{pinPath(id, fault.pin)}</b> {fault.message}
            </button>
          ))}
        </section>
      )}
    </>
  );
}

function countText(n: number): string {
  if (!n) return "This page is empty. Drag a block from the palette onto it.";
  return n === 1 ? "One block on this page. Select it to see and change it." : `${n} blocks on this page. Select one to see and change it.`;
}

function BlockSheet({ block, record }: { block: Block; record: OpRecord | undefined }) {
  const known = useStudio((state) => state.docs[state.active ?? ""]?.checked.blocks[block.id]);
  const fault = useStudio((state) => state.docs[state.active ?? ""]?.checked.errors[block.id]);
  const needs = fault !== undefined && lacksValue(block, record, fault.pin);
  const family = familyOf(record);
  const sparse = FEATURES.sparseEditor && record?.outputs.some((pin) => pin.type === "sparse");
  return (
    <>
      <h2 className="block-title" data-family={family.name}>
        <span className="category-icon" aria-hidden="true"><family.icon size={13} /></span>
        <span className="block-title-op" aria-label={block.op}><MiddleText text={block.op} /></span>
        {FEATURES.help && record && (
          <button className="plain icon" aria-label={`Help for ${block.op}`} onClick={() => set({ dialog: { kind: "help", op: record.name } })}><CircleHelp size={15} aria-hidden="true" /></button>
        )}
      </h2>
      <NameField block={block} />
      {FEATURES.errors && fault && <p className={`fault${needs ? " needs" : ""}`} role="alert">{fault.pin ? <b>{fault.pin}: </b> : null}{fault.message}</p>}
      {!record && <p className="fault">The catalogue has no such block.</p>}
      {sparse && <button onClick={() => set({ dialog: { kind: "sparse", block: block.id } })}>Edit as a sparse matrix</button>}
      {record && record.inputs.length > 0 && <h3>Inputs</h3>}
      {record?.inputs.map((pin) => <PinSheet key={pin.name} block={block} pin={pin} info={infoText(known?.inputs[pin.name])} faulty={fault?.pin === pin.name && !needs} />)}
      {FEATURES.attributes && record && Object.keys(record.attrs).length > 0 && <h3>Attributes</h3>}
      {FEATURES.attributes && record && Object.entries(record.attrs).map(([name, attr]) => <AttributeField key={name} block={block} name={name} attr={attr} />)}
      {record && record.outputs.length > 0 && <h3>Outputs</h3>}
      {record?.outputs.map((pin) => (
        <div key={pin.name} className="out-row">
          <span>{pin.name}</span> <span className="pin-info">{infoText(known?.outputs[pin.name])}</span>
        </div>
      ))}
    </>
  );
}

function NameField({ block }: { block: Block }) {
  const page = useDoc()?.page;
  const [name, setName] = useState(block.id);
  const fault = page ? nameFault(page, block.id, name) : null;
  const finish = () => {
    if (!fault) renameBlock(block.id, name);
  };
  const leave = () => {
    if (!fault) return finish();
    setName(block.id);
    notify("warning", `It is still called ${block.id}. ${name} cannot be its name: ${fault}.`, { block: block.id });
  };
  return (
    <label className="field">
      Name
      <input
        className="name-field"
        value={name}
        readOnly={!FEATURES.rename}
        aria-invalid={fault !== null}
        onChange={(event) => setName(event.target.value)}
        onBlur={leave}
        onKeyDown={(event) => {
          if (event.key === "Enter") finish();
          if (event.key === "Escape") setName(block.id);
        }}
      />
      {fault && <span className="fault" role="alert">{fault}</span>}
    </label>
  );
}

function PinSheet({ block, pin, info, faulty }: { block: Block; pin: Pin; info: string; faulty: boolean }) {
  const ends = endsAt(block, pin.name);
  const hidden = block.hidden?.includes(pin.name) ?? false;
  return (
    <div className={`pin-edit${faulty ? " faulty" : ""}`} data-pin={pin.name}>
      <div className="pin-title" title={pinText(pin)}>
        <span className="pin-name">{pin.name}{pin.optional ? " (optional)" : ""}</span>
        <span className="pin-info">{info}</span>
      </div>
      {ends.map((end, place) => (
        <div key={`${end} ${place}`} className="end">
          <button className="plain end-name" onClick={() => showBlock(parseEnd(end).block)} title="Show where it comes from">{end}</button>
          {pin.many && FEATURES.listPins && ends.length > 1 && (
            <>
              <button className="plain" aria-label={`Move ${end} up`} disabled={place === 0} onClick={() => change(`order of ${block.id}.${pin.name}`, (page) => edit.reorder(page, block.id, pin.name, place, place - 1))}><ArrowUp size={13} aria-hidden="true" /></button>
              <button className="plain" aria-label={`Move ${end} down`} disabled={place === ends.length - 1} onClick={() => change(`order of ${block.id}.${pin.name}`, (page) => edit.reorder(page, block.id, pin.name, place, place + 1))}><ArrowDown size={13} aria-hidden="true" /></button>
            </>
          )}
          <button className="plain" aria-label={`Cut the wire from ${end} to ${block.id}.${pin.name}`} onClick={() => change(`cut ${end}`, (page) => edit.disconnect(page, { to: block.id, pin: pin.name, place }))}><X size={13} aria-hidden="true" /></button>
        </div>
      ))}
      {ends.length > 0 && FEATURES.hiddenWires && (
        <label className="check">
          <input type="checkbox" checked={hidden} onChange={() => change(`${hidden ? "show" : "hide"} wires of ${block.id}.${pin.name}`, (page) => edit.setHidden(page, block.id, pin.name, !hidden))} /> hide the wire
        </label>
      )}
      {ends.length === 0 && takesLiteral(pin) && <LiteralField block={block} pin={pin} />}
    </div>
  );
}
