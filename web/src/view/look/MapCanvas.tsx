// The heat map: a cell is pointed at or walked to, and its exact value is told.

import { useEffect, useRef } from "react";
import type { Scale } from "../../model/heat";
import { useStudio } from "../../state/store";
import type { Cells } from "../../transport/protocol";
import type { Heat } from "./MapPanel";
import { cellSize, paintMap, paletteOf } from "./paint";
import { useAsked, useSize, useSlowly } from "./refresh";

interface Props {
  heat: Heat;
  scale: Scale;
  label: string;
  given: Record<string, unknown>;
  cell: [number, number] | null;
  choose: (cell: [number, number] | null) => void;
  tick: unknown;
  tell: (words: string) => void;
}

export function MapCanvas({ heat, scale, label, given, cell, choose, tick, tell }: Props) {
  const [box, room] = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useStudio((state) => state.theme);
  const rows = heat.cells.length;
  const columns = heat.cells[0]?.length ?? 0;
  const [down, across] = heat.step ?? [1, 1];
  const size = cellSize(rows, columns, room.width - 4, room.height - 2);
  const shown = cell && cell[0] < rows && cell[1] < columns ? cell : null;
  useEffect(() => {
    if (canvas.current && room.width) paintMap(canvas.current, heat.cells, scale, size, shown, paletteOf(canvas.current));
  }, [heat, scale, size[0], size[1], shown?.[0], shown?.[1], theme]); // eslint-disable-line
  const place = shown && ([shown[0] * down, shown[1] * across] as const);
  // The exact text comes from the server; pointing at many cells in a row asks for the last of them.
  const slow = useSlowly(place ? `${place[0]} ${place[1]}` : "", label, 60);
  const [row, column] = slow ? slow.split(" ").map(Number) : [0, 0];
  const exact = useAsked<Cells>(slow ? "window" : null, { ...given, rows: [row, row! + 1], columns: [column, column! + 1] }, tick).found;
  const isExact = exact && place && exact.rows[0] === place[0] && exact.columns[0] === place[1];
  const words = place ? `row ${place[0]}, column ${place[1]}: ${isExact ? exact.cells[0]?.[0] : "…"}` : "Point at a cell, or use the arrow keys.";
  useEffect(() => tell(words), [words, tell]);
  const point = (event: React.MouseEvent) => {
    const at = canvas.current!.getBoundingClientRect();
    const next: [number, number] = [Math.floor((event.clientY - at.top) / size[1]), Math.floor((event.clientX - at.left) / size[0])];
    if (next[0] >= 0 && next[1] >= 0 && next[0] < rows && next[1] < columns) choose(next);
  };
  const walk = (event: React.KeyboardEvent) => {
    const by = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], Home: [0, -columns], End: [0, columns], PageDown: [10, 0], PageUp: [-10, 0] }[event.key];
    if (!by || event.altKey) return;
    const [r, c] = shown ?? [-by[0]!, -by[1]!];
    choose([Math.max(0, Math.min(rows - 1, r + by[0]!)), Math.max(0, Math.min(columns - 1, c + by[1]!))]);
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div className="map-box" ref={box}>
      <canvas
        ref={canvas}
        className="heat"
        tabIndex={0}
        role="application"
        aria-label={`Heat map of ${label}, ${heat.rows} rows and ${heat.columns} columns, from ${heat.low} to ${heat.high}. Arrow keys walk over it.`}
        style={{ width: columns * size[0], height: rows * size[1] }}
        onMouseMove={point}
        onKeyDown={walk}
      />
    </div>
  );
}
