// A button for a command of the table: its title, its keys, and whether it can be done now.

import { command, isReady } from "../state/commands";
import { useStudio } from "../state/store";

export function keysText(keys: string | undefined): string {
  return keys ? keys.replace(/Arrow/, "").replace(/\+([a-z])$/, (_, key: string) => `+${key.toUpperCase()}`) : "";
}

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
