// Keys: each is looked up in the table of commands. While somebody types into a field, only a few are heard.

import { COMMANDS, isReady } from "./commands";
import { held, pasteText } from "./pasting";
import { get, set } from "./store";

const MAC = typeof navigator !== "undefined" && /Mac|iPhone|iPad/.test(navigator.platform);
const IN_FIELDS = new Set(["commands", "save", "run", "run-steps", "close-page", "next-tab", "previous-tab"]);

export function keyOf(event: KeyboardEvent): string {
  const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const parts: string[] = [];
  if (MAC ? event.metaKey : event.ctrlKey) parts.push("Ctrl");
  if (event.altKey) parts.push("Alt");
  if (event.shiftKey && (event.key.length > 1 || /[a-z]/i.test(event.key))) parts.push("Shift");
  return [...parts, name].join("+");
}

function isField(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

/** Buttons and links answer to Enter and Space themselves. */
function answersItself(event: KeyboardEvent): boolean {
  const target = event.target;
  if (!(target instanceof HTMLElement) || !["Enter", " "].includes(event.key) || event.ctrlKey || event.metaKey) return false;
  return target.closest("button, a, [role=tab], [role=option], [role=menuitem], summary") !== null;
}

/** Whether text of a panel is chosen; on the drawing blocks are meant, whatever was chosen before. */
function isTextChosen(target: EventTarget | null): boolean {
  return !(target instanceof HTMLElement && target.closest(".react-flow")) && String(window.getSelection()) !== "";
}

/** A field takes what was typed when it is left; the page that is saved, run or closed has it then. */
function finishField(field: HTMLElement, stay: boolean): void {
  field.blur();
  if (stay && field.isConnected) field.focus();
}

export function listenToKeys(root: HTMLElement | Window): () => void {
  const down = (raw: Event) => {
    const event = raw as KeyboardEvent;
    if (event.defaultPrevented || event.isComposing) return;
    if (event.key === "Escape" && get().dialog) {
      set({ dialog: null });
      event.preventDefault();
      return;
    }
    if (get().dialog || answersItself(event)) return;
    const key = keyOf(event);
    const typing = isField(event.target);
    // Out of a field, so that keys are commands again; after the field itself has heard of it.
    if (typing && event.key === "Escape") setTimeout(() => (event.target as HTMLElement).blur(), 0);
    const found = COMMANDS.find((command) => command.keys === key && (!typing || IN_FIELDS.has(command.id)));
    if (!found || (!FEATURES.keyboard && !typing)) return;
    if (!isReady(found)) return;
    // Chosen text is what somebody wants to copy, not the block that happens to be selected.
    if (["copy", "cut"].includes(found.id) && isTextChosen(event.target)) return;
    event.preventDefault();
    if (typing && found.id !== "commands") finishField(event.target as HTMLElement, found.id === "save" || found.id.startsWith("run"));
    void found.run();
  };
  const pasted = (raw: Event) => {
    const event = raw as ClipboardEvent;
    if (get().dialog || isField(event.target)) return;
    const text = event.clipboardData?.getData("text/plain") || held.text;
    if (pasteText(text)) event.preventDefault();
  };
  root.addEventListener("keydown", down);
  root.addEventListener("paste", pasted);
  return () => {
    root.removeEventListener("keydown", down);
    root.removeEventListener("paste", pasted);
  };
}
