// Tabs with the keys that tabs have.

import { useRef } from "react";

interface Props<T extends string> {
  label: string;
  tabs: [T, string][];
  now: T | null;
  choose: (tab: T) => void;
}

export function Tabs<T extends string>({ label, tabs, now, choose }: Props<T>) {
  const box = useRef<HTMLDivElement>(null);
  return (
    <div
      className="value-tabs"
      role="tablist"
      aria-label={label}
      ref={box}
      onKeyDown={(event) => {
        const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
        if (!step) return;
        const k = (tabs.findIndex(([name]) => name === now) + step + tabs.length) % tabs.length;
        event.preventDefault();
        choose(tabs[k]![0]);
        box.current?.querySelectorAll<HTMLElement>("[role=tab]")[k]?.focus();
      }}
    >
      {tabs.map(([name, title]) => (
        <button key={name} role="tab" aria-selected={name === now} tabIndex={name === now ? 0 : -1} className={name === now ? "active" : ""} onClick={() => choose(name)}>
          {title}
        </button>
      ))}
    </div>
  );
}
