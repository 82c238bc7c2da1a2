// The inspector of several selected blocks: arrange them, and change what they have in common.

import { AlignCenterHorizontal, AlignCenterVertical, AlignEndHorizontal, AlignEndVertical, AlignHorizontalDistributeCenter, AlignStartHorizontal, AlignStartVertical, AlignVerticalDistributeCenter, CopyPlus, Frame, LayoutDashboard, Trash2 } from "lucide-react";
import { useState } from "react";
import { get, server, useStudio } from "../app/store";
import { CommandButton } from "../commands/CommandButton";
import { setValues } from "../page/actions";
import { endsAt } from "../page/page";
import type { Block, OpRecord, Pin, Typed } from "../transport/protocol";
import { messageOf } from "../transport/protocol";
import { takesLiteral } from "../values/literals";
import { AttributeField } from "./AttributeField";
import { inputOf } from "./pins";

const ARRANGE = [
  ["align-left", AlignStartVertical], ["align-centre", AlignCenterVertical], ["align-right", AlignEndVertical],
  ["align-top", AlignStartHorizontal], ["align-middle", AlignCenterHorizontal], ["align-bottom", AlignEndHorizontal],
  ["spread-across", AlignHorizontalDistributeCenter], ["spread-down", AlignVerticalDistributeCenter], ["layout", LayoutDashboard],
] as const; // prettier-ignore

export function SeveralBlocks({ blocks }: { blocks: Block[] }) {
  const catalog = useStudio((state) => state.catalog);
  const records = blocks.map((block) => catalog.find(block.op)).filter((record) => record !== undefined);
  const [first, ...others] = blocks;
  const whole = records.length === blocks.length && first;
  return (
    <>
      <h2>{blocks.length} blocks</h2>
      <div className="button-grid" role="group" aria-label="Align and distribute">
        {ARRANGE.map(([id, icon]) => <CommandButton key={id} id={id} icon={icon} />)}
      </div>
      <div className="button-row">
        <CommandButton id="frame" icon={Frame} text="Frame" />
        <CommandButton id="duplicate" icon={CopyPlus} text="Duplicate" />
        <CommandButton id="delete" icon={Trash2} text="Delete" />
      </div>
      {whole && FEATURES.attributes && commonAttrs(records).length > 0 && <h3>Attributes of all</h3>}
      {whole && FEATURES.attributes && commonAttrs(records).map((name) => <AttributeField key={name} block={first} others={others} name={name} attr={records[0]!.attrs[name]!} />)}
      {whole && FEATURES.literals && commonPins(blocks, records).length > 0 && <h3>Values of all</h3>}
      {whole && FEATURES.literals && commonPins(blocks, records).map((pin) => <CommonValue key={pin.name} blocks={blocks} pin={pin} />)}
    </>
  );
}

/** Attributes that all ops have, of the same kind. */
export function commonAttrs(records: readonly OpRecord[]): string[] {
  const [first, ...others] = records;
  const kind = (record: OpRecord, name: string) => JSON.stringify(record.attrs[name]);
  return Object.keys(first?.attrs ?? {}).filter((name) => others.every((record) => name in record.attrs && kind(record, name) === kind(first!, name)));
}

/** Inputs that all ops have and that no wire leads to. */
export function commonPins(blocks: readonly Block[], records: readonly OpRecord[]): Pin[] {
  const [first, ...others] = records;
  return (first?.inputs ?? []).filter((pin) => takesLiteral(pin) && others.every((record) => {
    const other = inputOf(record, pin.name);
    return other !== undefined && takesLiteral(other);
  }) && blocks.every((block) => !endsAt(block, pin.name).length));
}

function CommonValue({ blocks, pin }: { blocks: Block[]; pin: Pin }) {
  const [text, setText] = useState("");
  const [fault, setFault] = useState<string | null>(null);
  const finish = async () => {
    if (!text.trim()) return;
    const page = get().active;
    try {
      const typed = await server().request<Typed>("parse", { text, dtype: pin.dtypes.length === 1 && pin.type !== "any" ? pin.dtypes[0] : "" });
      if (get().active !== page) return;
      setValues(blocks.map(({ id }) => id), pin.name, typed.value);
      setText("");
    } catch (error) {
      setFault(messageOf(error));
    }
  };
  return (
    <label className="field">
      {pin.name}
      <input
        className="mono"
        value={text}
        placeholder="a value for all of them"
        aria-label={`Value of ${pin.name} of ${blocks.length} blocks`}
        aria-invalid={fault !== null}
        onChange={(event) => {
          setText(event.target.value);
          setFault(null);
        }}
        onKeyDown={(event) => event.key === "Enter" && void finish()}
        onBlur={() => void finish()}
      />
      {fault && <span className="fault" role="alert">{fault}</span>}
    </label>
  );
}
