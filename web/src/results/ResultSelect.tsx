// A field that selects a result.

import type { ResultItem } from "./results";

export function ResultSelect({ label, results, value, change }: { label: string; results: readonly ResultItem[]; value: string | null; change: (results: ResultItem) => void }) {
  return (
    <label className="result-select">
      {label}{" "}
      <select
        aria-label={label}
        value={value ?? ""}
        onChange={(event) => {
          const found = results.find((one) => one.key === event.target.value);
          if (found) change(found);
        }}
      >
        {value === null && <option value="">choose</option>}
        {results.map((one) => (
          <option key={one.key} value={one.key}>
            {one.key} {one.result.info.text}
          </option>
        ))}
      </select>
    </label>
  );
}
