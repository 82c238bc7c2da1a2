// A value drawn small: a table, a heat map, or a line, with its bounds.

import type { ReactNode } from "react";
import { memo, useEffect, useRef } from "react";
import { scaleOf } from "../heatmap/colours";
import type { Json } from "../transport/protocol";
import { literalText } from "./format";
import type { MiniCells } from "./mini";
import { boundsOf, cellsOfValue, numbersOfValue, shortNumber, thinned, tints } from "./mini";

export const LINE = 24; // letters of a value that stays on one line

/** A typed value as a small table, or as a picture with its dtype and shape; null if a line of text shows it. */
export function drawingOf(value: Json): ReactNode {
  const text = literalText(value);
  const isFlat = !text?.startsWith("{{") && !text?.startsWith("[[");
  if (!FEATURES.preview || (text !== null && text.length <= LINE && isFlat)) return null;
  const small = cellsOfValue(value);
  if (small) return <MiniTable {...small} />;
  const numbers = numbersOfValue(value);
  if (!numbers || numbers.flat().every((one) => one === null)) return null;
  const [low, high] = boundsOf(numbers);
  return (
    <>
      <span className="mini-type">{typeText(value)}</span>
      <MiniPicture numbers={thinned(numbers)} low={low} high={high} />
    </>
  );
}

/** dtype and shape of a typed array. */
function typeText(value: Json): string | null {
  if (typeof value !== "object" || value === null || Array.isArray(value) || !("dtype" in value)) return null;
  return `${String(value["dtype"])}[${((value["shape"] as number[] | undefined) ?? []).join(",")}]`;
}

/** All elements of a small matrix or vector; the tint of a cell shows its number. */
export const MiniTable = memo(function MiniTable({ cells, numbers }: MiniCells) {
  const tint = tints(numbers);
  return (
    <span className="mini-table" style={{ gridTemplateColumns: `repeat(${cells[0]!.length}, auto)` }}>
      {cells.map((row, i) =>
        row.map((text, j) => (
          <span key={`${i} ${j}`} className={tint[i]![j]! < 0 ? "less" : "more"} style={{ "--tint": `${Math.round(Math.abs(tint[i]![j]!) * 34)}%` } as React.CSSProperties}>
            {text}
          </span>
        )),
      )}
    </span>
  );
});

interface PictureProps {
  numbers: (number | null)[][];
  low: number | null;
  high: number | null;
}

const HEIGHT = 34; // pixels

/** Many numbers: a matrix as a heat map, a vector as a line. */
export const MiniPicture = memo(function MiniPicture({ numbers, low, high }: PictureProps) {
  const isLine = numbers.length === 1 || numbers.every((row) => row.length === 1);
  return (
    <span className="mini-picture">
      {isLine ? <Sparkline values={numbers.flat()} low={low} high={high} /> : <HeatPixels numbers={numbers} low={low} high={high} />}
      {low !== null && high !== null && <span className="mini-range">{shortNumber(low)} … {shortNumber(high)}</span>}
    </span>
  );
});

function HeatPixels({ numbers, low, high }: PictureProps) {
  const sheet = useRef<HTMLCanvasElement>(null);
  const [rows, columns] = [numbers.length, numbers[0]?.length ?? 0];
  useEffect(() => {
    const pen = sheet.current?.getContext("2d");
    if (!pen || !rows || !columns) return;
    const scale = scaleOf(low, high);
    const pixels = pen.createImageData(columns, rows);
    numbers.forEach((row, i) =>
      row.forEach((value, j) => {
        pixels.data.set([...scale.colour(value), 255], 4 * (i * columns + j));
      }),
    );
    pen.putImageData(pixels, 0, 0);
  }, [numbers, low, high, rows, columns]);
  return <canvas ref={sheet} className="mini-heat" width={columns} height={rows} style={{ height: Math.min(HEIGHT, Math.max(14, 6 * rows)) }} aria-hidden="true" />;
}

const WIDE = 120;

function Sparkline({ values, low, high }: { values: (number | null)[]; low: number | null; high: number | null }) {
  const [from, to] = [low ?? 0, high ?? 1];
  const x = (k: number) => (values.length > 1 ? (k / (values.length - 1)) * WIDE : WIDE / 2).toFixed(1);
  const y = (value: number) => (HEIGHT - 4 - ((value - from) / (to - from || 1)) * (HEIGHT - 8)).toFixed(1);
  let pen = "M";
  const path = values.map((value, k) => {
    if (value === null) {
      pen = "M";
      return "";
    }
    const step = `${pen}${x(k)} ${y(value)}`;
    pen = "L";
    return step;
  });
  return (
    <svg className="mini-line" viewBox={`0 0 ${WIDE} ${HEIGHT}`} preserveAspectRatio="none" height={HEIGHT} aria-hidden="true">
      <path d={path.join("")} />
    </svg>
  );
}
