// Which matrix of an array with more than two axes is shown.

import { useState } from "react";

/** The shape of the matrix that is seen, and the axes before it. */
export function matrixOf(shape: readonly (number | null)[] | null): { leading: number[]; rows: number; columns: number } {
  const sizes = (shape ?? []).map((size) => size ?? 0);
  if (sizes.length < 2) return { leading: [], rows: sizes[0] ?? 1, columns: 1 };
  return { leading: sizes.slice(0, -2), rows: sizes.at(-2)!, columns: sizes.at(-1)! };
}

/** As many indices as there are leading axes, each inside its axis: a run may have made the array smaller. */
export function inside(at: readonly number[], leading: readonly number[]): number[] {
  return leading.map((size, k) => Math.max(0, Math.min(at[k] ?? 0, size - 1)));
}

/** Panels that look at the same result look at the same matrix of it. */
const kept = new Map<string, number[]>();

export function useLeading(key: string, leading: readonly number[]): [number[], (at: number[]) => void] {
  const [at, setAt] = useState(kept.get(key) ?? []);
  const change = (next: number[]) => {
    kept.set(key, next);
    setAt(next);
  };
  return [inside(at, leading), change];
}

export function Leading({ at, leading, change }: { at: number[]; leading: number[]; change: (at: number[]) => void }) {
  if (!leading.length) return null;
  return (
    <span className="leading" role="group" aria-label="Leading indices">
      [
      {leading.map((size, k) => (
        <label key={k}>
          <input
            type="number"
            aria-label={`Index on axis ${k}, below ${size}`}
            title={`Index on axis ${k}, 0 to ${size - 1}`}
            min={0}
            max={size - 1}
            value={at[k] ?? 0}
            onChange={(event) => {
              const typed = event.target.valueAsNumber;
              if (Number.isInteger(typed)) change(inside(at.map((one, j) => (j === k ? typed : one)), leading));
            }}
          />
          ,{" "}
        </label>
      ))}
      :, :]
    </span>
  );
}
