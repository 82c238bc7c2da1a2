// A grid on a canvas with its axes; cells are read with the pointer or the arrow keys.

import { useEffect, useState } from "react";
import { axisNumbers } from "../ui/axis";
import { themeColours } from "../ui/themeColours";
import { useSize } from "../ui/useSize";
import type { Grid } from "./grid";
import { paintGrid } from "./grid";

const STEPS: Record<string, [number, number]> = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

interface Props {
  grid: Grid;
  label: string;
  across: [string, string, string]; // first, name and last of the axis
  down: string;
  rows: number; // of the axis down, which are numbered
  textOf: (down: number, across: number) => string;
  report: (status: string) => void;
}

export function GridPlot({ grid, label, across, down, rows, textOf, report }: Props) {
  const [box, { width, height }] = useSize<HTMLDivElement>();
  const [theme, setTheme] = useState(0);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setTheme((now) => now + 1);
    dark.addEventListener("change", changed);
    const watcher = new MutationObserver(changed);
    const themed = box.current?.closest("[data-theme]");
    if (themed) watcher.observe(themed, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      dark.removeEventListener("change", changed);
      watcher.disconnect();
    };
  }, [box]);
  const [pointed, setCell] = useState<[number, number] | null>(null);
  const clamp = (cell: [number, number]): [number, number] => [Math.min(grid.down - 1, Math.max(0, cell[0])), Math.min(grid.across - 1, Math.max(0, cell[1]))];
  const cell = pointed && clamp(pointed); // a grid can get smaller
  const canvas = (element: HTMLCanvasElement | null) => {
    if (!element || width === 0 || height === 0) return;
    const { accent, warning, paper, line } = themeColours(element, ["accent", "warning", "paper", "line"]);
    paintGrid(element, grid, width, height, { ink: accent, mark: warning, paper, line });
  };
  const status = cell ? textOf(...cell) : "";
  useEffect(() => report(status), [status, report]);
  const point = (event: React.PointerEvent) => {
    const place = event.currentTarget.getBoundingClientRect();
    const at = (size: number, offset: number, cells: number) => Math.floor((offset / size) * cells);
    setCell(clamp([at(place.height, event.clientY - place.y, grid.down), at(place.width, event.clientX - place.x, grid.across)]));
  };
  const walk = (event: React.KeyboardEvent) => {
    const by = STEPS[event.key];
    if (!by) return;
    const [row, column] = cell ?? [0, 0];
    setCell(clamp([row + by[0], column + by[1]]));
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <figure className="spy-plot">
      <div className="spy-canvas" ref={box}>
        <canvas key={theme} ref={canvas} tabIndex={0} role="img" aria-label={label} style={{ width, height }} onPointerMove={point} onPointerLeave={() => setCell(null)} onKeyDown={walk} />
        {cell && <span className="spy-cursor" style={{ left: `${((cell[1] + 0.5) / grid.across) * 100}%`, top: `${((cell[0] + 0.5) / grid.down) * 100}%` }} />}
      </div>
      <figcaption>
        {across.map((text, k) => <span key={k}>{text}</span>)}
      </figcaption>
      <span className="spy-down">{down}</span>
      <span className="spy-rows" aria-hidden="true">
        {height > 0 && axisNumbers(rows, height / rows, 16).map((row) => <span key={row} style={{ top: `${((row + 0.5) / rows) * 100}%` }}>{row.toLocaleString("en")}</span>)}
      </span>
    </figure>
  );
}

/** A bar in a list, as long as its share of the longest one. */
export function Bar({ of }: { of: number }) {
  return <span className="spy-bar" style={{ width: `${Math.max(2, 40 * of)}px` }} />;
}
