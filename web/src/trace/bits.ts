// Two texts of numbers, as the parts where they agree and where they differ.

/** The text that both begin with, and what is left of each. */
export function differenceOf(a: string, b: string): { same: string; a: string; b: string } {
  let k = 0;
  while (k < Math.min(a.length, b.length) && a[k] === b[k]) k++;
  return { same: a.slice(0, k), a: a.slice(k), b: b.slice(k) };
}

export function placeText(at: readonly number[]): string {
  return at.length ? `[${at.join(", ")}]` : "the number";
}
