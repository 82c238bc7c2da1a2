// Tabs above a view that the caller renders.

import * as RadixTabs from "@radix-ui/react-tabs";

interface Props<T extends string> {
  label: string;
  tabs: [T, string][];
  now: T | null;
  choose: (tab: T) => void;
}

export function Tabs<T extends string>({ label, tabs, now, choose }: Props<T>) {
  return (
    <RadixTabs.Root value={now ?? ""} onValueChange={(tab) => choose(tab as T)}>
      <RadixTabs.List className="value-tabs" aria-label={label}>
        {tabs.map(([name, title]) => (
          // The view is not a panel of Radix, so there is no element for aria-controls to name.
          <RadixTabs.Trigger key={name} value={name} className={name === now ? "active" : ""} aria-controls={undefined}>
            {title}
          </RadixTabs.Trigger>
        ))}
      </RadixTabs.List>
    </RadixTabs.Root>
  );
}
