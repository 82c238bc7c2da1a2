// A row as a sum, in writing: fractions, rows with elision, and how thick a ribbon is.

import { inputOf } from "../blocks/pins";
import type { OpRecord, RowSum, Scale, SumTerm } from "../transport/protocol";

const VULGAR: Record<string, string> = {
  "1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼", "3/4": "¾", "1/5": "⅕", "2/5": "⅖", "3/5": "⅗", "4/5": "⅘",
  "1/6": "⅙", "5/6": "⅚", "1/7": "⅐", "1/8": "⅛", "3/8": "⅜", "5/8": "⅝", "7/8": "⅞", "1/9": "⅑", "1/10": "⅒",
}; // prettier-ignore

/** `1/2` as ½; what has no sign of its own stays as it is. */
export function fractionText(text: string): string {
  return VULGAR[text] ?? (text.startsWith("-") && VULGAR[text.slice(1)] ? `−${VULGAR[text.slice(1)]}` : text.replace(/^-/, "−"));
}

/** A number in few digits; the exact one is for tooltips. */
export function numberText(text: string, digits = 6): string {
  if (/^-?\d+(\.0)?$/.test(text)) return text.replace(/\.0$/, "").replace(/^-/, "−");
  const number = Number(text);
  if (!Number.isFinite(number)) return text;
  return String(Number(number.toPrecision(digits))).replace(/^-/, "−").replace("e-", "e−");
}

/** `[1, 2, …]`; a row of one column is written without brackets. */
export function rowText(values: readonly string[], columns: number, most = 4, digits = 6): string {
  if (columns === 1) return values[0] === undefined ? "" : numberText(values[0], digits);
  const shown = values.slice(0, most).map((value) => numberText(value, digits));
  return `[${shown.join(", ")}${columns > shown.length ? ", …" : ""}]`;
}

/** What a term is multiplied by before it is added; empty if it is added as it is. */
export function termFactor(term: SumTerm): string {
  const [first] = term.scales;
  if (!first) return "";
  return fractionText(term.scales.length === 1 && !first.divides ? first.text : term.factor);
}

/** `½ because bag 0 has 2 ids` */
export function reasonText({ factor, reason }: Pick<SumTerm, "factor" | "reason">): string {
  return reason ? `${fractionText(factor)} because ${reason}` : "added as it is";
}

/** `indices[1] = 2`, the id at a position of its pin; the position alone where rows are added without ids. */
export function idText(op: OpRecord | undefined, place: number | null, id: number | null): string {
  return id === null ? String(place) : `${inputOf(op, "indices")?.name ?? "ids"}[${place}] = ${id}`;
}

export function scaleText(scale: Scale): string {
  return `${scale.divides ? " ÷ " : "·"}${fractionText(scale.text)}`;
}

export interface Equation {
  opening: string; // "(" if the sum is scaled as a whole
  terms: { factor: string; row: string; term: SumTerm }[];
  more: number; // terms that are not written
  closing: string;
  result: string;
}

export function equationOf(sum: RowSum, most = 6): Equation {
  const shown = sum.terms.slice(0, sum.total_terms > most ? most - 1 : most);
  const factors = shown.map(termFactor);
  const plain = factors.every((factor) => factor === "");
  const columns = sum.terms[0]?.column === null || !sum.terms.length ? sum.of_columns : 1;
  const braced = sum.then.length > 0 && sum.total_terms > 1;
  return {
    opening: braced ? "(" : "",
    terms: shown.map((term, k) => ({ factor: plain ? "" : factors[k] || "1", row: rowText(term.values, columns), term })),
    more: sum.total_terms - shown.length,
    closing: (braced ? ")" : "") + sum.then.map(scaleText).join(""),
    result: rowText(sum.result, sum.of_columns),
  };
}

/** `½·[1, 2] + 1·[6, 8] = [6.5, 9]` */
export function equationText(sum: RowSum, most = 6): string {
  const found = equationOf(sum, most);
  if (sum.kind === "zero") return `no row: ${found.result}`;
  if (sum.kind === "by row") return `${sum.op}(${sum.terms.map((term) => `${term.pin}[${term.row}]`).join(", ")}) = ${found.result}`;
  const terms = found.terms.map(({ factor, row }) => (factor ? `${factor}·${row}` : row));
  if (found.more) terms.push(`… ${found.more.toLocaleString("en")} more …`);
  return `${found.opening}${terms.join(" + ")}${found.closing} = ${found.result}`;
}

/** How thick the ribbon of a term is, beside those of the others. */
export function ribbonWidth(weight: number | null, largest: number, thickest = 14): number {
  if (weight === null || largest === 0) return 2;
  return 2 + (thickest - 2) * Math.min(1, Math.abs(weight) / largest);
}

export interface Ribbon {
  pin: string;
  row: number;
  label: string;
  weight: number | null;
  reason: string;
}

/** The ribbons of a row: an id that names a row twice makes one ribbon, with both factors. */
export function ribbonsOf(sum: RowSum, mostLabels = 3): Ribbon[] {
  const found = new Map<string, { ribbon: Ribbon; labels: string[]; reasons: Set<string> }>();
  for (const term of sum.terms) {
    const key = JSON.stringify([term.pin, term.row, term.column]);
    const label = fractionText(term.factor);
    const before = found.get(key);
    if (before) {
      before.labels.push(label);
      before.reasons.add(reasonText(term));
      before.ribbon.weight = before.ribbon.weight === null || term.weight === null ? null : before.ribbon.weight + term.weight;
    } else found.set(key, { ribbon: { pin: term.pin, row: term.row, label, weight: term.weight, reason: "" }, labels: [label], reasons: new Set([reasonText(term)]) });
  }
  return [...found.values()].map(({ ribbon, labels, reasons }) => {
    const same = labels.every((label) => label === labels[0]);
    const label = labels.length === 1 ? labels[0]! : same ? `${labels.length} × ${labels[0]}` : labels.slice(0, mostLabels).join(" + ") + (labels.length > mostLabels ? " + …" : "");
    return { ...ribbon, label, reason: [...reasons].slice(0, mostLabels).join("; ") };
  });
}
