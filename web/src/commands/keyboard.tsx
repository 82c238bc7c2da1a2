// Keys run commands; while the user types into a field, only a few do. The keys dialog lists them.

import { get, set } from "../app/store";
import { localClipboard, pasteText } from "../clipboard/clipboard";
import { DialogFrame } from "../ui/DialogFrame";
import { COMMANDS, isReady } from "./commands";

const MAC = typeof navigator !== "undefined" && /Mac|iPhone|iPad/.test(navigator.platform);
const IN_FIELDS = new Set(["commands", "save", "run", "run-steps", "close-page", "next-tab", "previous-tab"]);
const UNDO = new Set(["undo", "redo", "redo-y"]);

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

const saved = new WeakMap<EventTarget, string>(); // texts of fields as they were focused, or taken over last

function textOf(field: EventTarget | null): string | undefined {
  return field instanceof HTMLInputElement || field instanceof HTMLTextAreaElement ? field.value : undefined;
}

/** Whether undo in a field is about the page: nothing was typed there that the page does not have. */
function undoesPage(field: EventTarget | null): boolean {
  return field instanceof HTMLSelectElement || (field !== null && textOf(field) !== undefined && saved.get(field) === textOf(field));
}

/** Leave a field for the canvas, so that keys are commands again: the selected block gets the focus. */
function leaveField(field: HTMLElement, root: HTMLElement | Window): void {
  const inside = root instanceof Window ? document : root;
  field.blur();
  if (get().dialog || get().finder) return;
  inside.querySelector<HTMLElement>(".react-flow__node.selected")?.focus({ preventScroll: true });
}

/** Close the panels that cover the canvas of a narrow window; in a field that keeps its text, Escape is about that. */
function closePanels(target: EventTarget | null): boolean {
  const { narrow, paletteOpen, inspectorOpen, dialog, finder } = get();
  if (!FEATURES.narrowPanels || !narrow || dialog || finder || !(paletteOpen || inspectorOpen) || (isField(target) && textOf(target))) return false;
  set({ paletteOpen: false, inspectorOpen: false });
  return true;
}

/** Buttons and links handle Enter and Space themselves. */
function handlesKey(event: KeyboardEvent): boolean {
  const target = event.target;
  if (!(target instanceof HTMLElement) || !["Enter", " "].includes(event.key) || event.ctrlKey || event.metaKey) return false;
  return target.closest("button, a, [role=tab], [role=option], [role=menuitem], summary") !== null;
}

/** The start of a value, typed while a block is focused, goes to its first pin without one. */
function typesValue(event: KeyboardEvent): boolean {
  const node = event.target;
  if (!FEATURES.literals || !(node instanceof HTMLElement) || !node.matches(".react-flow__node") || event.ctrlKey || event.metaKey || event.altKey) return false;
  const field = /^[\d[({"'.-]$/.test(event.key) ? node.querySelector<HTMLElement>("button.literal.empty") : null;
  if (!field) return false;
  event.preventDefault();
  field.dispatchEvent(new KeyboardEvent("keydown", { key: event.key, bubbles: true, cancelable: true }));
  return true;
}

/** Whether text in a panel is selected. On the canvas, keys are about blocks, whatever text is selected elsewhere. */
function isTextSelected(target: EventTarget | null): boolean {
  return !(target instanceof HTMLElement && target.closest(".react-flow")) && String(window.getSelection()) !== "";
}

/** Fields commit their text on blur; it must be in the page before that is saved, run or closed. */
function commitField(field: HTMLElement, stay: boolean): void {
  field.blur();
  if (stay && field.isConnected) field.focus();
}

export function listenToKeys(root: HTMLElement | Window): () => void {
  const down = (raw: Event) => {
    const event = raw as KeyboardEvent;
    if (event.defaultPrevented || event.isComposing) return;
    if (event.target instanceof HTMLElement && event.target.closest("[role=menu]")) return; // letters select its entries
    if (event.key === "Escape" && get().dialog) {
      set({ dialog: null });
      event.preventDefault();
      return;
    }
    if (event.key === "Escape" && closePanels(event.target)) {
      event.preventDefault();
      return;
    }
    if (get().dialog || handlesKey(event) || typesValue(event)) return;
    const key = keyOf(event);
    const typing = isField(event.target);
    // Leave the field, so that keys are commands again, after the field has handled Escape.
    if (typing && event.key === "Escape") setTimeout(() => leaveField(event.target as HTMLElement, root), 0);
    if (typing && event.key === "Enter") setTimeout(() => saved.set(event.target!, textOf(event.target) ?? ""), 0);
    const inField = (id: string) => IN_FIELDS.has(id) || (UNDO.has(id) && undoesPage(event.target));
    const found = COMMANDS.find((command) => command.keys === key && (!typing || inField(command.id)));
    if (!found || (!FEATURES.keyboard && !typing)) return;
    if (!isReady(found)) return;
    // Selected text is what the user wants to copy, not the selected block.
    if (["copy", "cut"].includes(found.id) && isTextSelected(event.target)) return;
    event.preventDefault();
    if (typing && found.id !== "commands" && !UNDO.has(found.id)) commitField(event.target as HTMLElement, found.id === "save" || found.id.startsWith("run"));
    void found.run();
    // The page's undo changes the text behind the field.
    if (typing && UNDO.has(found.id)) setTimeout(() => saved.set(event.target!, textOf(event.target) ?? ""), 0);
  };
  // A button that has the focus, such as one that opens a menu, would take Ctrl+Enter for Enter.
  const runs = (raw: Event) => {
    const event = raw as KeyboardEvent;
    if (event.key !== "Enter" || !/Ctrl/.test(keyOf(event)) || !(event.target as Element).closest?.("button")) return;
    down(event);
    if (event.defaultPrevented) event.stopPropagation();
  };
  const focused = (event: Event) => {
    const text = textOf(event.target);
    if (text !== undefined) saved.set(event.target!, text);
  };
  const pasted = (raw: Event) => {
    const event = raw as ClipboardEvent;
    if (get().dialog || isField(event.target)) return;
    const text = event.clipboardData?.getData("text/plain") || localClipboard.text;
    if (pasteText(text)) event.preventDefault();
  };
  root.addEventListener("keydown", runs, true);
  root.addEventListener("keydown", down);
  root.addEventListener("paste", pasted);
  root.addEventListener("focusin", focused);
  return () => {
    root.removeEventListener("focusin", focused);
    root.removeEventListener("keydown", down);
    root.removeEventListener("keydown", runs, true);
    root.removeEventListener("paste", pasted);
  };
}

export function keysText(keys: string | undefined): string {
  return keys ? keys.replace(/Arrow/, "").replace(/\+([a-z])$/, (_, key: string) => `+${key.toUpperCase()}`) : "";
}

const BY_HAND: [string, string][] = [
  ["Tab, Shift+Tab", "from block to block and from field to field"],
  ["Arrows", "move the selected blocks"],
  ["Wheel, Space + drag, middle button", "move the page"],
  ["Ctrl + wheel, pinch", "zoom"],
  ["Shift + click, drag on the page", "select several"],
  ["Alt + drag", "duplicate blocks"],
  ["Double click on the page", "search for a block to place there"],
  ["Drop a wire on the page", "search for a block that takes it"],
  ["Drop a block on a wire", "insert it there"],
  ["Right button, Shift+F10", "menus of the page, of blocks, wires and pins"],
  ["Ctrl+V", "paste blocks at the pointer, also from JSON"],
];

export function KeysDialog() {
  const groups = [...new Set(COMMANDS.map((command) => command.group))];
  return (
    <DialogFrame title="Keys" wide>
      <div className="keys">
        {groups.map((group) => (
          <section key={group}>
            <h3>{group}</h3>
            <dl>
              {COMMANDS.filter((command) => command.group === group && command.keys).map((command) => (
                <div key={command.id}><dt><kbd>{keysText(command.keys)}</kbd></dt><dd>{command.title}</dd></div>
              ))}
            </dl>
          </section>
        ))}
        <section>
          <h3>By hand</h3>
          <dl>{BY_HAND.map(([keys, text]) => <div key={keys}><dt><kbd>{keys}</kbd></dt><dd>{text}</dd></div>)}</dl>
        </section>
      </div>
    </DialogFrame>
  );
}
