// Which numbers the server records over the runs.

import type { ResultRef } from "../app/store";
import { changeDoc, doc, server } from "../app/store";
import { attempt } from "../messages/messages";
import { resultKey } from "../results/results";
import type { Trend } from "../transport/protocol";

export interface Element extends ResultRef {
  at: number[];
}

export type SeriesReply = { block?: string; pin?: string; entry?: number | null; at?: number[] } & Trend["series"][number];
export type TrendReply = { series: SeriesReply[]; run: number; chosen?: boolean };

export async function watch(name: string, elements: readonly Element[] | null): Promise<boolean> {
  const series = elements?.map(({ entry, ...rest }) => (entry === null ? rest : { ...rest, entry }));
  const reply = await attempt(() => server().request("watch", { name, ...(series ? { series } : {}) }), { page: name });
  const run = doc(name)?.run;
  if (reply && run) changeDoc(name, { run: { ...run } }); // panels request again
  return reply !== null;
}

export function elementsOf(trend: TrendReply): Element[] {
  return trend.series.flatMap(({ block, pin, entry, at }) =>
    block === undefined || pin === undefined ? [] : [{ block, pin, entry: entry ?? null, at: at ?? [] }],
  );
}

export function elementKey(element: Element): string {
  return resultKey(element) + (element.at.length ? `[${element.at.join(",")}]` : "");
}

/** Add a number to the trend. */
export async function watchAlso(element: Element): Promise<boolean> {
  const open = doc();
  if (!open || !FEATURES.trend) return false;
  const trend = await attempt(() => server().request<TrendReply>("trend", { name: open.name, since: 0 }));
  if (!trend) return false;
  const others = elementsOf(trend).filter((one) => elementKey(one) !== elementKey(element));
  return watch(open.name, [...others, element]);
}
