// The chart: uPlot in the colours of the theme.

import { useEffect, useRef } from "react";
import { useStudio } from "../app/store";
import { themeColours } from "../ui/themeColours";
import { useSize } from "../ui/useSize";
import type { Line } from "./points";
import { columnsOf, shortNumber } from "./points";

import uPlot from "uplot";

/** Distinguished by hue and lightness, and by dashes from the ninth on; each is visible on light and dark backgrounds. */
const HUES = ["#3d87d6", "#d9792b", "#3f9d55", "#c94f8a", "#8b74d8", "#9a8a1c", "#1f9aa5", "#c0504d"];

export function hueOf(k: number): string {
  return HUES[k % HUES.length]!;
}

export function dashOf(k: number): number[] {
  return [[], [8, 4], [2, 3]][Math.floor(k / HUES.length) % 3]!;
}

export function Chart({ lines, log, auto }: { lines: Line[]; log: boolean; auto: boolean }) {
  const [box, size] = useSize<HTMLDivElement>();
  const plot = useRef<uPlot | null>(null);
  const theme = useStudio((state) => state.theme);
  const labels = JSON.stringify(lines.map((line) => line.label));
  const data = useRef<Line[]>(lines);
  data.current = lines;

  useEffect(() => {
    const element = box.current;
    if (!element || size.width < 40 || size.height < 40) return;
    const colours = themeColours(element, ["text", "line", "line-soft"]);
    const axis: uPlot.Axis = {
      stroke: colours.text,
      grid: { stroke: colours["line-soft"], width: 1 },
      ticks: { stroke: colours.line, width: 1 },
      font: "11px system-ui, sans-serif",
    };
    // On a logarithmic scale powers of ten are enough: more grid lines would hide the series.
    const tens: uPlot.Axis.Filter = (_, ticks) => ticks.map((tick) => (Math.abs(Math.log10(tick) % 1) < 1e-6 ? tick : null));
    const sparse = log ? { filter: tens } : {};
    const names = JSON.parse(labels) as string[];
    const made = new uPlot(
      {
        width: size.width,
        height: size.height,
        legend: { show: false },
        scales: { x: { time: false }, y: { distr: log ? 3 : 1, auto } },
        axes: [
          { ...axis, size: 30, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) },
          { ...axis, size: 66, space: 22, grid: { ...axis.grid, ...sparse }, ticks: { ...axis.ticks, ...sparse }, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : shortNumber(tick))) },
        ],
        cursor: { points: { size: 6 } },
        series: [
          {},
          ...names.map((label, k): uPlot.Series => ({ label, stroke: hueOf(k), width: 2, dash: dashOf(k), spanGaps: false, points: { show: (_, __, first, last) => last - first < 40, size: 5 } })),
        ],
      },
      columnsOf(data.current, log) as uPlot.AlignedData,
      element,
    );
    plot.current = made;
    return () => {
      made.destroy();
      plot.current = null;
    };
  }, [labels, log, auto, theme, size.width, size.height, box]);

  useEffect(() => {
    // Without auto-scale, new points do not change the scale.
    plot.current?.setData(columnsOf(lines, log) as uPlot.AlignedData, auto);
    if (!auto) plot.current?.redraw();
  }, [lines, log, auto]);

  return <div ref={box} className="chart" aria-hidden="true" />;
}
