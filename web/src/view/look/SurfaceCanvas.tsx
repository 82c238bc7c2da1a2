// The numbers as a surface that can be turned.

import { useEffect, useRef, useState } from "react";
import type { Scale, View } from "../../model/heat";
import { useStudio } from "../../state/store";
import type { Heat } from "./MapPanel";
import { paintSurface, paletteOf } from "./paint";
import { useSize } from "./refresh";

const STEP = Math.PI / 24;
const FLAT = 0.05;

export function SurfaceCanvas({ heat, scale, label, tell }: { heat: Heat; scale: Scale; label: string; tell: (words: string) => void }) {
  const [box, room] = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useStudio((state) => state.theme);
  const [view, setView] = useState<View>({ turn: Math.PI / 6, tilt: Math.PI / 5.5 });
  const held = useRef<[number, number] | null>(null);
  const turn = (by: number, up: number) => setView(({ turn, tilt }) => ({ turn: turn + by, tilt: Math.min(Math.PI / 2, Math.max(FLAT, tilt + up)) }));
  const [width, height] = [Math.max(50, room.width - 4), Math.max(50, room.height - 2)];
  useEffect(() => {
    if (canvas.current && room.width) paintSurface(canvas.current, heat.cells, scale, [heat.low ?? 0, heat.high ?? 0], view, width, height, paletteOf(canvas.current));
  }, [heat, scale, view, width, height, theme, room.width]);
  const small = heat.cells.length < 2 || (heat.cells[0]?.length ?? 0) < 2;
  const words = small ? "A surface needs at least two rows and two columns." : "Drag or arrow keys turn it.";
  useEffect(() => tell(words), [words, tell]);
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
          held.current = [event.clientX, event.clientY];
          event.currentTarget.setPointerCapture(event.pointerId);
        }}
        onPointerMove={(event) => {
          if (!held.current) return;
          turn((event.clientX - held.current[0]) / 120, (event.clientY - held.current[1]) / 160);
          held.current = [event.clientX, event.clientY];
        }}
        onPointerUp={() => (held.current = null)}
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
