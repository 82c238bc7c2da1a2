// A dialog over everything: it has a title, keeps the focus inside, and closes with Escape.

import type { ReactNode } from "react";
import { useEffect, useId, useRef } from "react";
import { set } from "../state/store";

export function closeDialog(): void {
  set({ dialog: null });
}

export function DialogFrame({ title, children, wide = false }: { title: string; children: ReactNode; wide?: boolean }) {
  const box = useRef<HTMLDialogElement>(null);
  const label = useId();
  useEffect(() => {
    const dialog = box.current!;
    if (!dialog.open) dialog.showModal();
    return () => dialog.close();
  }, []);
  return (
    <dialog
      ref={box}
      className={`dialog${wide ? " wide" : ""}`}
      aria-labelledby={label}
      onCancel={(event) => {
        event.preventDefault();
        closeDialog();
      }}
      onClick={(event) => event.target === box.current && closeDialog()}
    >
      <div className="dialog-body">
        <header className="dialog-head">
          <h2 id={label}>{title}</h2>
          <button className="plain" onClick={closeDialog} aria-label="Close">×</button>
        </header>
        {children}
      </div>
    </dialog>
  );
}
