// A button that runs a command: its title, its keys, and whether it is available now.

import type { LucideIcon } from "lucide-react";
import { useStudio } from "../app/store";
import { Tip } from "../ui/Tip";
import { command, isReady } from "./commands";
import { keysText } from "./keyboard";

interface Props {
  id: string;
  text?: string;
  icon?: LucideIcon;
  className?: string;
}

export function CommandButton({ id, text, icon: Icon, className = "" }: Props) {
  const found = command(id);
  const ready = useStudio(() => isReady(found));
  return (
    <Tip text={found.title} keys={keysText(found.keys)}>
      <button className={`tool${text ? "" : " icon"} ${className}`} disabled={!ready} onClick={() => void found.run()} aria-label={text ? undefined : found.title} data-command={id}>
        {Icon && <Icon size={16} aria-hidden="true" />}
        {text && <span className="tool-text">{text}</span>}
      </button>
    </Tip>
  );
}
