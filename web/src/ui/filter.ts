// Filters of lists: every typed word must occur.

export function wordsOf(typed: string): string[] {
  return typed.toLowerCase().split(/\s+/).filter(Boolean);
}

/** Whether a text contains every word, in any order and case. */
export function filterOf(typed: string): (text: string) => boolean {
  const words = wordsOf(typed);
  return (text) => words.every((word) => text.toLowerCase().includes(word));
}
