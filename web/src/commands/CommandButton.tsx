// A button that runs a command: its title, its keys, and whether it is available now.

import { useStudio } from "../app/store";
import { command, isReady } from "./commands";
import { keysText } from "./keyboard";

export function CommandButton({ id, text, className = "" }: { id: string; text: string; className?: string }) {
  const found = command(id);
  const ready = useStudio(() => isReady(found));
  const keys = keysText(found.keys);
  return (
    <button className={`tool ${className}`} disabled={!ready} onClick={() => void found.run()} aria-label={/[A-Za-z]/.test(text) ? undefined : found.title} title={keys ? `${found.title} (${keys})` : found.title} data-command={id}>
      {text}
    </button>
  );
}
