// The catalogue: records by name and category, and the palette's search.

import type { OpRecord } from "../transport/protocol";
import { wordsOf } from "../ui/filter";

export interface Catalog {
  records: OpRecord[];
  categories: { name: string; records: OpRecord[] }[];
  find(name: string): OpRecord | undefined;
}

export function makeCatalog(records: OpRecord[]): Catalog {
  const byName = new Map<string, OpRecord>();
  const byCategory = new Map<string, OpRecord[]>();
  for (const record of records) {
    byName.set(record.name, record);
    for (const alias of record.aliases) byName.set(alias, record);
    byCategory.set(record.category, [...(byCategory.get(record.category) ?? []), record]);
  }
  // Graph blocks come first, then the catalogue's order.
  const graphFirst = [...byCategory].sort(([, a], [, b]) => rank(a) - rank(b));
  const categories = graphFirst.map(([name, found]) => ({ name, records: found }));
  return { records, categories, find: (name) => byName.get(name) };
}

function rank(records: OpRecord[]): number {
  return records.every((record) => record.layer === "graph") ? 0 : records.some((record) => record.layer === "kernel") ? 1 : 2;
}

/** Records that match, best first: the start of the name, its capitals, anywhere in the name, the description. */
export function search(catalog: Catalog, typed: string, most = 200): OpRecord[] {
  const words = wordsOf(typed);
  if (!words.length) return catalog.records.slice(0, most);
  const scored: [number, number, OpRecord][] = [];
  catalog.records.forEach((record, k) => {
    const score = scoreOf(record, words);
    if (score > 0) scored.push([score, k, record]);
  });
  scored.sort((a, b) => b[0] - a[0] || a[2].name.length - b[2].name.length || a[1] - b[1]);
  return scored.slice(0, most).map(([, , record]) => record);
}

function scoreOf(record: OpRecord, words: string[]): number {
  const names = [record.name, ...record.aliases].map((name) => name.toLowerCase());
  const humps = record.name.replace(/[^A-Z0-9]/g, "").toLowerCase();
  let total = 0;
  for (const word of words) {
    let best = 0;
    for (const name of names) {
      if (name === word) best = Math.max(best, 100);
      else if (name.startsWith(word)) best = Math.max(best, 60);
      else if (name.includes(word)) best = Math.max(best, 40);
    }
    if (humps.startsWith(word)) best = Math.max(best, 50);
    if (!best && record.snake_name.includes(word)) best = 40;
    if (!best && record.category.toLowerCase().includes(word)) best = 15;
    if (!best && record.doc.toLowerCase().includes(word)) best = 5;
    if (!best) return 0;
    total += best;
  }
  return total;
}
