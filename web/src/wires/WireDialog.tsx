// Wiring by keyboard: choose a pin of the block, then the other pin. The server says which pins accept it.

import { useEffect, useState } from "react";
import { get, useDoc } from "../app/store";
import { connectWire, fetchCandidates } from "../page/actions";
import type { End } from "../page/page";
import { blockOf, endText, entryText, parseEnd, pinPath } from "../page/page";
import { CloseDialog, DialogFrame, closeDialog } from "../ui/DialogFrame";
import { filterOf } from "../ui/filter";
import { SearchList } from "../ui/SearchList";

interface Chosen {
  end: End;
  side: "from" | "to";
}

export function WireDialog({ block }: { block: string }) {
  const open = useDoc();
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const [takes, setTakes] = useState<Record<string, string | null> | null>(null);
  const found = open && blockOf(open.page, block);
  const record = get().catalog.find(found?.op ?? "");
  useEffect(() => {
    if (chosen) void fetchCandidates(chosen.end, chosen.side).then((found) => (found ? setTakes(found) : closeDialog()));
  }, [chosen]);
  if (!open || !found || !record) return <CloseDialog />;

  if (!chosen) {
    const known = open.checked.blocks[block]?.outputs ?? {};
    const outputs = record.outputs.flatMap((pin) => {
      const info = known[pin.name];
      const entries = Array.isArray(info) ? info.map((_, k) => entryText(pin.name, k)) : [];
      return [pin.name, ...entries];
    });
    const pins = [
      ...outputs.map((pin) => ({ key: `from ${pin}`, title: pin, note: "output" })),
      ...record.inputs.map((pin) => ({ key: `to ${pin.name}`, title: pin.name, note: "input" })),
    ];
    return (
      <DialogFrame title={`Wire ${block}`}>
        <SearchList
          label="Which pin of the block"
          entries={(typed) => pins.filter((pin) => filterOf(typed)(pin.title))}
          take={(key) => {
            const [side, pin] = key.split(" ") as ["from" | "to", string];
            setChosen({ side, end: { ...parseEnd(`x.${pin}`), block } });
          }}
        />
      </DialogFrame>
    );
  }
  const title = chosen.side === "from" ? `Wire ${endText(chosen.end)} to …` : `Wire … to ${pinPath(block, chosen.end.pin)}`;
  return (
    <DialogFrame title={title}>
      {takes === null ? (
        <p role="status">Asking which pins take it …</p>
      ) : (
        <SearchList
          key="other"
          label={chosen.side === "from" ? "Which pin it leads to" : "Which pin it comes from"}
          entries={(typed) => {
            const fits = filterOf(typed);
            return Object.entries(takes)
              .filter(([pin]) => fits(pin))
              .sort(([, a], [, b]) => Number(a !== null) - Number(b !== null))
              .map(([pin, reason]) => ({ key: pin, title: pin, ...(reason === null ? {} : { disabledReason: reason }) }));
          }}
          take={(key) => {
            const other = parseEnd(key);
            closeDialog();
            if (chosen.side === "from") void connectWire(chosen.end, other.block, other.pin);
            else void connectWire(other, block, chosen.end.pin);
          }}
          empty="No other block has such a pin."
        />
      )}
    </DialogFrame>
  );
}
