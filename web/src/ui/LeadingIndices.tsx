// Which matrix of an array of rank 3 or more is shown: one index for each axis before the last two.

import { useState } from "react";
import { clampIndices, leadingOf } from "../values/grid";

const chosen = new Map<string, number[]>();

/** Panels that use the same key show the same matrix. */
export function useLeadingIndices(key: string, shape: readonly number[]): [number[], (at: number[]) => void] {
  const [at, setAt] = useState(chosen.get(key) ?? []);
  const change = (next: number[]) => {
    chosen.set(key, next);
    setAt(next);
  };
  return [clampIndices(shape, at), change];
}

export function LeadingIndices({ shape, at, change }: { shape: readonly number[]; at: readonly number[]; change: (at: number[]) => void }) {
  const leading = leadingOf(shape);
  if (!leading.length) return null;
  return (
    <fieldset className="leading">
      <legend>Matrix</legend>
      {leading.map((size, axis) => (
        <label key={axis}>
          axis {axis}
          <input
            type="number"
            min={0}
            max={size - 1}
            value={at[axis] ?? 0}
            aria-label={`Index of axis ${axis}`}
            onChange={(event) => {
              const typed = Math.floor(event.target.valueAsNumber) || 0;
              change(clampIndices(shape, leading.map((_, k) => (k === axis ? typed : (at[k] ?? 0)))));
            }}
          />
          <span className="quiet">of {size}</span>
        </label>
      ))}
    </fieldset>
  );
}
