// Entries of menus that run commands of the table.

import type { LucideIcon } from "lucide-react";
import type { MenuItem } from "../ui/Menu";
import { command, isReady } from "./commands";
import { keysText } from "./keyboard";

/** A command as an entry of a menu; `title` replaces its own where the place makes a shorter one clear. */
export function commandItem(id: string, icon?: LucideIcon, title?: string, more: Partial<MenuItem> = {}): MenuItem {
  const found = command(id);
  return {
    key: id,
    title: title ?? found.title,
    icon,
    keys: keysText(found.keys),
    disabled: !isReady(found),
    run: () => void found.run(),
    ...more,
  };
}
