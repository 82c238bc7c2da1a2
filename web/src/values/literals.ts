// Literals typed into pins: which pins take one, of which dtypes. The server parses them, so that no number loses precision here.

import { get, server } from "../app/store";
import { notify, settle } from "../messages/messages";
import { setValue } from "../page/actions";
import { trackParsing } from "../project/autosave";
import type { Block, Pin, Typed } from "../transport/protocol";
import { messageOf } from "../transport/protocol";
import { rememberText } from "./typedText";

/** Whether a literal can be typed into a pin: operations and feeds come by wire only. */
export function takesLiteral(pin: Pin): boolean {
  return !pin.ref && !["operation", "feed", "sparse"].includes(pin.type) && !(pin.many && pin.type === "any");
}

/** The dtypes that a pin accepts. */
export function dtypesOf(pin: Pin, all: string[]): string[] {
  return pin.type === "any" || !pin.dtypes.length ? all : pin.dtypes;
}

/** The dtype of the current value, or the only one the pin accepts. */
export function dtypeOf(block: Block, pin: Pin): string {
  const value = block.values?.[pin.name];
  if (value && typeof value === "object" && !Array.isArray(value) && typeof value["dtype"] === "string") return value["dtype"];
  return pin.dtypes.length === 1 && pin.type !== "any" ? pin.dtypes[0]! : "";
}

/** Parse a literal and put it into the page; the error message if that fails. */
export async function enterLiteral(block: Block, pin: string, text: string, dtype: string): Promise<string | null> {
  const name = get().active;
  if (!text.trim()) {
    if (block.values?.[pin] !== undefined) setValue(block.id, pin, undefined);
    settle(name, "literal", block.id, pin);
    return null;
  }
  try {
    const parsing = server().request<Typed>("parse", { text, dtype }).then((typed) => {
      rememberText(block.id, pin, typed.value, text, name);
      if (JSON.stringify(typed.value) !== JSON.stringify(block.values?.[pin])) setValue(block.id, pin, typed.value, name);
    });
    trackParsing(name, parsing);
    await parsing;
    settle(name, "literal", block.id, pin);
    return null;
  } catch (error) {
    const message = messageOf(error);
    notify("error", message, { page: name, block: block.id, pin, about: "literal" }); // the message shows block and pin
    return `${pin}: ${message}`;
  }
}
