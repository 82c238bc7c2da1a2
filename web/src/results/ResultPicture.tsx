// A result drawn small: a table with tinted cells, a heat map or a line; else its first elements as text.

import { useMemo } from "react";
import type { ResultRef } from "../app/store";
import type { Info, Result } from "../transport/protocol";
import { MiniPicture, MiniTable } from "../values/MiniValue";
import type { MiniCells } from "../values/mini";
import { cellsOfPreview } from "../values/mini";
import { useMiniMap } from "./useMiniMap";

/** All elements of a small result. */
export function useSmallCells({ preview, info }: Result): MiniCells | null {
  return useMemo(() => (FEATURES.preview ? cellsOfPreview(preview, info) : null), [preview, info]);
}

export function ResultPicture({ of, item, cells }: { of: ResultRef; item: Result; cells: MiniCells | null }) {
  const isPictured = FEATURES.preview && !cells && hasPicture(item.info);
  const map = useMiniMap(isPictured ? of : null, item.info.shape?.length ?? 0, item.run);
  if (cells && cells.cells.length > 1) return <span className="result-preview"><MiniTable {...cells} /></span>; // one row is as short as text
  if (map) return <MiniPicture numbers={map.cells} low={map.low} high={map.high} />;
  return <span className={`result-preview${isPictured ? " mini-picture" : ""}`}>{item.preview}</span>;
}

function hasPicture({ shape, dtype }: Info): boolean {
  const size = (shape ?? []).reduce<number>((product, n) => product * (n ?? 0), 1);
  return (shape?.length ?? 0) > 0 && size > 1 && dtype !== "string";
}
