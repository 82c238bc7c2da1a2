// Menus: under a button, or at a point of the window. Their entries are data, mostly commands of the table.

import * as Dropdown from "@radix-ui/react-dropdown-menu";
import type { LucideIcon } from "lucide-react";
import { Check, ChevronRight } from "lucide-react";
import type { ReactElement } from "react";
import { usePortalRoot, useReturnFocus } from "./portal";

export interface MenuItem {
  key: string;
  title: string;
  icon?: LucideIcon | undefined;
  keys?: string | undefined;
  disabled?: boolean;
  danger?: boolean;
  checked?: boolean | undefined; // of an entry that switches something
  run: () => void;
}

export interface SubMenu {
  key: string;
  title: string;
  icon?: LucideIcon | undefined;
  entries: MenuEntry[];
}

export type MenuEntry = MenuItem | SubMenu | "line";

const NARROW = 600; // pixels; there is no space for a menu beside a menu, so its entries are listed below its title

function Entries({ entries }: { entries: MenuEntry[] }) {
  const root = usePortalRoot();
  return entries.map((entry, k) => {
    if (entry === "line") return <Dropdown.Separator key={k} className="menu-line" />;
    const Icon = entry.icon;
    const icon = <span className="menu-icon" aria-hidden="true">{Icon && <Icon size={15} />}</span>;
    if ("entries" in entry) {
      return window.innerWidth < NARROW && FEATURES.narrowPanels ? (
        <Dropdown.Group key={entry.key} aria-label={entry.title}>
          <Dropdown.Label className="menu-item quiet">{icon}{entry.title}</Dropdown.Label>
          <Entries entries={entry.entries} />
        </Dropdown.Group>
      ) : (
        <Dropdown.Sub key={entry.key}>
          <Dropdown.SubTrigger className="menu-item" data-menu={entry.key}>
            {icon}
            {entry.title}
            <ChevronRight className="menu-more" size={14} aria-hidden="true" />
          </Dropdown.SubTrigger>
          <Dropdown.Portal container={root}>
            <Dropdown.SubContent className="menu" collisionPadding={8}>
              <Entries entries={entry.entries} />
            </Dropdown.SubContent>
          </Dropdown.Portal>
        </Dropdown.Sub>
      );
    }
    const inside = (
      <>
        {entry.checked === undefined ? icon : <span className="menu-icon" aria-hidden="true">{entry.checked && <Check size={15} />}</span>}
        {entry.title}
        {entry.keys && <kbd>{entry.keys}</kbd>}
      </>
    );
    const common = { className: `menu-item${entry.danger ? " danger" : ""}`, disabled: entry.disabled ?? false, onSelect: entry.run, "data-menu": entry.key };
    return entry.checked === undefined ? (
      <Dropdown.Item key={entry.key} {...common}>{inside}</Dropdown.Item>
    ) : (
      <Dropdown.CheckboxItem key={entry.key} {...common} checked={entry.checked}>{inside}</Dropdown.CheckboxItem>
    );
  });
}

/** A button with a menu below it. Entries are read when it opens. */
export function Menu({ entries, children, align = "start" }: { entries: () => MenuEntry[]; children: ReactElement; align?: "start" | "end" }) {
  const root = usePortalRoot();
  return (
    <Dropdown.Root modal={false}>
      <Dropdown.Trigger asChild>{children}</Dropdown.Trigger>
      <Dropdown.Portal container={root}>
        <Dropdown.Content className="menu" align={align} sideOffset={4} collisionPadding={8}>
          <Read entries={entries} />
        </Dropdown.Content>
      </Dropdown.Portal>
    </Dropdown.Root>
  );
}

function Read({ entries }: { entries: () => MenuEntry[] }) {
  return <Entries entries={entries()} />;
}

/** A menu at a point of the window. */
export function MenuAt({ label, at, entries, onClose }: { label: string; at: readonly [number, number]; entries: MenuEntry[]; onClose: () => void }) {
  const root = usePortalRoot();
  const returnFocus = useReturnFocus();
  return (
    <Dropdown.Root open modal={false} onOpenChange={(open) => !open && onClose()}>
      <Dropdown.Trigger asChild>
        <span className="menu-anchor" aria-hidden="true" style={{ left: at[0], top: at[1] }} />
      </Dropdown.Trigger>
      <Dropdown.Portal container={root}>
        {/* The anchor, which a trigger's menu gives the focus to, cannot have it. */}
        <Dropdown.Content className="menu" aria-label={label} aria-labelledby={undefined} align="start" sideOffset={0} collisionPadding={8} onCloseAutoFocus={returnFocus}>
          <Entries entries={entries} />
        </Dropdown.Content>
      </Dropdown.Portal>
    </Dropdown.Root>
  );
}
