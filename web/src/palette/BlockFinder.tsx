// The search for a block at a point of the canvas: any block, one that takes the wire that was dropped there, or one to
// insert on a wire.

import * as Popover from "@radix-ui/react-popover";
import type { Finder } from "../app/store";
import { doc, get, set, useStudio } from "../app/store";
import { place, wireOf } from "../page/actions";
import { endText, pinPath } from "../page/page";
import { insertOnWire, placeAtWire } from "../page/placing";
import type { OpRecord } from "../transport/protocol";
import { usePortalRoot, useReturnFocus } from "../ui/portal";
import type { Entry } from "../ui/SearchList";
import { SearchList } from "../ui/SearchList";
import { infoOfEnd } from "../wires/ends";
import { fitsOnWire, fittingPins } from "../wires/fits";
import { search } from "./catalog";
import { familyOf } from "./families";

function entries(typed: string): Entry[] {
  const { catalog, finder } = get();
  const open = doc();
  if (!finder || !open) return [];
  const fits = (record: OpRecord): string[] | null => {
    if (finder.wire) {
      const wire = wireOf(open.page, finder.wire);
      return wire && fitsOnWire(record, open.page, catalog, wire, infoOfEnd(open, wire.from)) ? [] : null;
    }
    if (!finder.drag) return [];
    const info = finder.drag.side === "from" ? infoOfEnd(open, finder.drag.end) : undefined;
    const pins = fittingPins(record, open.page, catalog, finder.drag, info);
    return pins.length ? pins.map((pin) => pin.name) : null;
  };
  return search(catalog, typed, catalog.records.length).flatMap((record) => {
    const pins = fits(record);
    return pins ? [{ key: record.name, title: record.name, note: pins.length ? pins.slice(0, 3).join(", ") : record.category, family: familyOf(record).name }] : [];
  }).slice(0, 200);
}

export function BlockFinder() {
  const finder = useStudio((state) => state.finder);
  return finder && <OpenFinder finder={finder} />;
}

function OpenFinder({ finder }: { finder: Finder }) {
  const root = usePortalRoot();
  const returnFocus = useReturnFocus();
  const close = () => set({ finder: null });
  const take = (op: string) => {
    const open = doc();
    close();
    const at: [number, number] = [finder.place[0], finder.place[1]];
    const wire = finder.wire && open && wireOf(open.page, finder.wire);
    if (wire) void insertOnWire(op, wire, [at[0] - 100, at[1] - 40]);
    else if (finder.drag) void placeAtWire(op, finder.drag.side === "from" ? at : [at[0] - 200, at[1]], finder.drag);
    else place(op, at);
  };
  const wire = finder.drag && (finder.drag.side === "from" ? endText(finder.drag.end) : pinPath(finder.drag.end.block, finder.drag.end.pin));
  const title = finder.wire ? "Insert a block on the wire" : wire ? `Blocks for ${wire}` : "Place a block here";
  return (
    <Popover.Root open onOpenChange={(open) => !open && close()}>
      <Popover.Anchor className="menu-anchor" style={{ left: finder.at[0], top: finder.at[1] }} />
      <Popover.Portal container={root}>
        <Popover.Content
          className="finder"
          aria-label={title}
          align="start"
          sideOffset={2}
          collisionPadding={8}
          onCloseAutoFocus={returnFocus}
          onKeyDown={(event) => event.key !== "Escape" && event.stopPropagation()}
        >
          <p className="finder-title">{title}</p>
          <SearchList label="Search blocks to place" entries={entries} take={take} empty="No block fits." />
        </Popover.Content>
      </Popover.Portal>
    </Popover.Root>
  );
}
