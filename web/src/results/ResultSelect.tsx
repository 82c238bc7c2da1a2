// A field that selects a result.

import type { Seen } from "./results";

export function ResultSelect({ label, seen, value, change }: { label: string; seen: readonly Seen[]; value: string | null; change: (seen: Seen) => void }) {
  return (
    <label className="result-select">
      {label}{" "}
      <select
        aria-label={label}
        value={value ?? ""}
        onChange={(event) => {
          const found = seen.find((one) => one.key === event.target.value);
          if (found) change(found);
        }}
      >
        {value === null && <option value="">choose</option>}
        {seen.map((one) => (
          <option key={one.key} value={one.key}>
            {one.key} {one.result.info.text}
          </option>
        ))}
      </select>
    </label>
  );
}
