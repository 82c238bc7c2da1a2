// A tooltip with the name of a control and its keys.

import * as Tooltip from "@radix-ui/react-tooltip";
import type { ReactElement, ReactNode } from "react";
import { usePortalRoot } from "./portal";

interface Props {
  text: ReactNode;
  keys?: string | undefined;
  side?: "top" | "bottom" | "left" | "right";
  children: ReactElement;
}

export function Tip({ text, keys, side = "bottom", children }: Props) {
  const root = usePortalRoot();
  return (
    <Tooltip.Root>
      <Tooltip.Trigger asChild>{children}</Tooltip.Trigger>
      <Tooltip.Portal container={root}>
        <Tooltip.Content className="tip" side={side} sideOffset={6} collisionPadding={8}>
          {text}
          {keys && <kbd>{keys}</kbd>}
        </Tooltip.Content>
      </Tooltip.Portal>
    </Tooltip.Root>
  );
}
