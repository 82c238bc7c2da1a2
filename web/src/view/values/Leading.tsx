// Which matrix of a value of higher rank is seen: one index for each axis before the last two.

import { leadingOf } from "../../model/grid";

export function Leading({ shape, at, setAt }: { shape: readonly number[]; at: readonly number[]; setAt: (at: number[]) => void }) {
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
              const index = Math.max(0, Math.min(Math.floor(Number(event.target.value)) || 0, size - 1));
              setAt(leading.map((_, k) => (k === axis ? index : (at[k] ?? 0))));
            }}
          />
          <span className="quiet">of {size}</span>
        </label>
      ))}
    </fieldset>
  );
}
