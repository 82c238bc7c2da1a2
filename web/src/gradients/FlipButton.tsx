// On a block with an output of floats: adds the blocks of its gradient.

import { set } from "../app/store";
import { select } from "../page/actions";
import type { Info } from "../transport/protocol";
import { isFloat } from "./pins";

export function FlipButton({ block, outputs }: { block: string; outputs: Record<string, Info | Info[]> | undefined }) {
  if (!FEATURES.flip || !Object.values(outputs ?? {}).flat().some(isFloat)) return null;
  const flip = (event: React.MouseEvent) => {
    event.stopPropagation();
    select([block]);
    set({ dialog: { kind: "flip" } });
  };
  return (
    <button className="flip-button nodrag" aria-label={`Flip ${block} to gradient`} title="Flip to gradient (g)" onClick={flip}>
      ∇
    </button>
  );
}
