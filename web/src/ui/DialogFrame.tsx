// A dialog over everything: it has a title, keeps the focus inside, and closes with Escape.

import type { ReactNode } from "react";
import { useEffect, useId, useRef } from "react";
import { set } from "../app/store";

const FIELDS = ".dialog-body > :not(header) :is(input, textarea, select, button):not(:disabled), .dialog-body > :is(input, button)";

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
  const box = useRef<HTMLDialogElement>(null);
  const pressed = useRef<EventTarget | null>(null);
  const label = useId();
  useEffect(() => {
    const dialog = box.current!;
    const before = document.activeElement;
    if (!dialog.open) dialog.showModal();
    // The browser would focus the first button, which closes the dialog; focus the first field instead.
    const first = dialog.querySelector<HTMLElement>("[data-first]") ?? dialog.querySelector<HTMLElement>(FIELDS);
    first?.focus();
    return () => {
      dialog.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={box}
      className={`dialog${wide ? " wide" : ""}`}
      aria-labelledby={label}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onKeyDown={(event) => {
        if (event.key !== "Escape" || event.defaultPrevented) return;
        event.preventDefault();
        event.stopPropagation();
        onClose();
      }}
      // A press that started inside, such as a text selection, does not close the dialog.
      onPointerDown={(event) => (pressed.current = event.target)}
      onClick={(event) => event.target === box.current && pressed.current === box.current && onClose()}
    >
      <div className="dialog-body">
        <header className="dialog-head">
          <h2 id={label}>{title}</h2>
          <button className="plain" onClick={onClose} aria-label="Close">×</button>
        </header>
        {children}
      </div>
    </dialog>
  );
}
