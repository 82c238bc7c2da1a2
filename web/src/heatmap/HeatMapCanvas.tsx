// The heat map, whose cells show their exact value, and the surface, which can be turned.

import { useEffect, useRef, useState } from "react";
import { useStudio } from "../app/store";
import type { Cells, HeatMap } from "../transport/protocol";
import { axisNumbers } from "../ui/axis";
import { useRequest, useThrottled } from "../ui/useRequest";
import { useSize } from "../ui/useSize";
import type { Scale } from "./colours";
import type { View } from "./surface";
import { cellSize, paintMap, paintSurface, paletteOf } from "./paint";

interface Props {
  heat: HeatMap;
  scale: Scale;
  label: string;
  args: Record<string, unknown>;
  cell: [number, number] | null;
  choose: (cell: [number, number] | null) => void;
  tick: unknown;
  report: (status: string) => void;
}

const [LEFT, TOP, PAD] = [46, 16, 2]; // space for the numbers of rows and columns, and the padding of the box

export function HeatMapCanvas({ heat, scale, label, args, cell, choose, tick, report }: Props) {
  const [box, area] = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useStudio((state) => state.theme);
  const rows = heat.cells.length;
  const columns = heat.cells[0]?.length ?? 0;
  const [down, across] = heat.step;
  const size = cellSize(rows, columns, area.width - 4 - LEFT, area.height - 2 - TOP);
  const shown = cell && cell[0] < rows && cell[1] < columns ? cell : null;
  useEffect(() => {
    if (canvas.current && area.width) paintMap(canvas.current, heat.cells, scale, size, shown, paletteOf(canvas.current));
  }, [heat, scale, size[0], size[1], shown?.[0], shown?.[1], theme]); // eslint-disable-line
  const place = shown && ([shown[0] * down, shown[1] * across] as const);
  // The exact text comes from the server; when the pointer crosses many cells, only the last is requested.
  const slow = useThrottled(place ? `${place[0]} ${place[1]}` : "", label, 60);
  const [row, column] = slow ? slow.split(" ").map(Number) : [0, 0];
  const exact = useRequest<Cells>(slow ? "window" : null, { ...args, rows: [row, row! + 1], columns: [column, column! + 1] }, tick).found;
  const isExact = exact && place && exact.rows[0] === place[0] && exact.columns[0] === place[1];
  const status = place ? `row ${place[0]}, column ${place[1]}: ${isExact ? exact.cells[0]?.[0] : "…"}` : "Point at a cell, or use the arrow keys.";
  useEffect(() => report(status), [status, report]);
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
      {axisNumbers(columns, size[0], 34).map((k) => <span key={k} className="map-column" style={{ left: LEFT + PAD + (k + 0.5) * size[0] }}>{k * across}</span>)}
      {axisNumbers(rows, size[1], 15).map((k) => <span key={k} className="map-row" style={{ top: TOP + PAD + (k + 0.5) * size[1] }}>{k * down}</span>)}
      <canvas
        ref={canvas}
        className="heat"
        tabIndex={0}
        role="application"
        aria-label={`Heat map of ${label}, ${heat.rows} rows and ${heat.columns} columns, from ${heat.low} to ${heat.high}. Arrow keys walk over it.`}
        style={{ width: columns * size[0], height: rows * size[1], margin: `${TOP}px 0 0 ${LEFT}px` }}
        onMouseMove={point}
        onKeyDown={walk}
      />
    </div>
  );
}

const STEP = Math.PI / 24;
const FLAT = 0.05;

export function SurfaceCanvas({ heat, scale, label, report }: { heat: HeatMap; scale: Scale; label: string; report: (status: string) => void }) {
  const [box, area] = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useStudio((state) => state.theme);
  const [view, setView] = useState<View>({ turn: Math.PI / 6, tilt: Math.PI / 5.5 });
  const dragStart = useRef<[number, number] | null>(null);
  const turn = (by: number, up: number) => setView(({ turn, tilt }) => ({ turn: turn + by, tilt: Math.min(Math.PI / 2, Math.max(FLAT, tilt + up)) }));
  const [width, height] = [Math.max(50, area.width - 4), Math.max(50, area.height - 2)];
  useEffect(() => {
    if (canvas.current && area.width) paintSurface(canvas.current, heat.cells, scale, [heat.low ?? 0, heat.high ?? 0], view, width, height, paletteOf(canvas.current));
  }, [heat, scale, view, width, height, theme, area.width]);
  const small = heat.cells.length < 2 || (heat.cells[0]?.length ?? 0) < 2;
  const status = small ? "A surface needs at least two rows and two columns." : "Drag or arrow keys turn it.";
  useEffect(() => report(status), [status, report]);
  return (
    <div className="map-box" ref={box}>
      <canvas
        ref={canvas}
        className="surface"
        tabIndex={0}
        role="application"
        aria-label={`Surface of ${label}, from ${heat.low} to ${heat.high}. Arrow keys turn it.`}
        data-turn={view.turn.toFixed(3)}
        data-tilt={view.tilt.toFixed(3)}
        style={{ width, height }}
        onPointerDown={(event) => {
          dragStart.current = [event.clientX, event.clientY];
          event.currentTarget.setPointerCapture(event.pointerId);
        }}
        onPointerMove={(event) => {
          if (!dragStart.current) return;
          turn((event.clientX - dragStart.current[0]) / 120, (event.clientY - dragStart.current[1]) / 160);
          dragStart.current = [event.clientX, event.clientY];
        }}
        onPointerUp={() => (dragStart.current = null)}
        onKeyDown={(event) => {
          const by = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP] }[event.key];
          if (!by || event.altKey) return;
          turn(by[0]!, by[1]!);
          event.preventDefault();
          event.stopPropagation();
        }}
      />
    </div>
  );
}
