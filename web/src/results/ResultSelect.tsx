// A field that selects a result.

import { useDoc } from "../app/store";
import { blockName } from "../page/page";
import type { ResultItem } from "./results";

export function ResultSelect({ label, results, value, change }: { label: string; results: readonly ResultItem[]; value: string | null; change: (results: ResultItem) => void }) {
  const open = useDoc();
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
            {open ? blockName(open.page, one.block) : one.block}{one.key.slice(one.block.length)} {one.result.info.text}
          </option>
        ))}
      </select>
    </label>
  );
}
