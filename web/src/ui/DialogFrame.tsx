// A dialog over everything: it has a title, keeps the focus inside, and closes with Escape.

import * as Dialog from "@radix-ui/react-dialog";
import { X } from "lucide-react";
import type { ReactNode } from "react";
import { useEffect, useRef } from "react";
import { set } from "../app/store";
import { usePortalRoot, useReturnFocus } from "./portal";

const FIELDS = ".dialog-body > :not(header) :is(input, textarea, select, button):not(:disabled), .dialog-body > :is(input, button)";

/** Fields that use Escape themselves while something is typed there. */
const OWN_ESCAPE = "[data-escape]";

export function closeDialog(): void {
  set({ dialog: null });
}

/** In place of a dialog whose block or note is gone: keys do nothing while a dialog counts as open. */
export function CloseDialog() {
  useEffect(closeDialog, []);
  return null;
}

interface Props {
  title: string;
  children: ReactNode;
  wide?: boolean;
  onClose?: () => void; // if closing does more than that
}

export function DialogFrame({ title, children, wide = false, onClose = closeDialog }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const root = usePortalRoot();
  const returnFocus = useReturnFocus();
  return (
    <Dialog.Root open onOpenChange={(open) => !open && onClose()}>
      <Dialog.Portal container={root}>
        {/* Radix's own overlay would insert a style element, which the content security policy forbids. */}
        <div className="dialog-shade" aria-hidden="true" />
        <Dialog.Content
          ref={box}
          className={`dialog${wide ? " wide" : ""}`}
          aria-describedby={undefined}
          onOpenAutoFocus={(event) => {
            // The first field, not the button that closes the dialog.
            const first = box.current?.querySelector<HTMLElement>("[data-first]") ?? box.current?.querySelector<HTMLElement>(FIELDS);
            if (!first) return;
            event.preventDefault();
            first.focus();
          }}
          onCloseAutoFocus={returnFocus}
          // Radix hears the key before a field inside does, which may use it to undo what was typed there.
          onEscapeKeyDown={(event) => {
            event.preventDefault();
            if (!(event.target instanceof Element && event.target.closest(OWN_ESCAPE))) onClose();
          }}
        >
          <div className="dialog-body">
            <header className="dialog-head">
              <Dialog.Title asChild><h2>{title}</h2></Dialog.Title>
              <Dialog.Close asChild><button className="plain icon" aria-label="Close"><X size={16} aria-hidden="true" /></button></Dialog.Close>
            </header>
            {children}
          </div>
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
