// The chart: uPlot in the colours of the theme.

import { useEffect, useRef } from "react";
import { useStudio } from "../app/store";
import { themeColours } from "../ui/themeColours";
import { useSize } from "../ui/useSize";
import type { Line } from "./points";
import { columnsOf } from "./points";
import type { Range } from "./scale";
import { linearRange, linearTicks, logRange, logTicks, runRange, tickText } from "./scale";

import uPlot from "uplot";

/** Distinguished by hue and lightness, and by dashes from the ninth on; each is visible on light and dark backgrounds. */
const HUES = ["#3d87d6", "#d9792b", "#3f9d55", "#c94f8a", "#8b74d8", "#9a8a1c", "#1f9aa5", "#c0504d"];

const LEAST = { width: 120, height: 56 }; // pixels; a smaller chart has no space beside its axes
const X_SPACE = 44; // pixels between two ticks
const Y_SPACE = 22;

// uPlot looks for a tick distance in this list first, and draws no ticks if none is large enough. Ours ignore it.
const NO_INCREMENTS = [Infinity];

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
  const drawn = useRef<Line[] | null>(null);
  const fixed = useRef<{ log: boolean; range: Range } | null>(null); // the y axis, for when auto-scale is off

  useEffect(() => {
    const element = box.current;
    if (!element || size.width < LEAST.width || size.height < LEAST.height) return;
    const colours = themeColours(element, ["text", "line", "line-soft"]);
    const axis: uPlot.Axis = {
      stroke: colours.text,
      grid: { stroke: colours["line-soft"], width: 1 },
      ticks: { stroke: colours.line, width: 1 },
      font: "11px system-ui, sans-serif",
    };
    const own = { incrs: NO_INCREMENTS, filter: (_: uPlot, ticks: number[]) => ticks };
    const runTicks: uPlot.Axis.Splits = (chart, _, min, max) => linearTicks([min, max], chart.bbox.width / devicePixelRatio / X_SPACE, 1);
    const valueTicks: uPlot.Axis.Splits = (chart, _, min, max) => (log ? logTicks : linearTicks)([min, max], chart.bbox.height / devicePixelRatio / Y_SPACE);
    const valueRange: uPlot.Scale.Range = (_, min, max) => {
      const kept = fixed.current;
      if (!auto && kept?.log === log) return kept.range;
      const range = (log ? logRange : linearRange)(min, max);
      if (min !== null) fixed.current = { log, range };
      return range;
    };
    const names = JSON.parse(labels) as string[];
    const made = new uPlot(
      {
        width: size.width,
        height: size.height,
        legend: { show: false },
        scales: { x: { time: false, range: (_, min, max) => runRange(min, max) }, y: { distr: log ? 3 : 1, range: valueRange } },
        axes: [
          { ...axis, ...own, size: 30, splits: runTicks, values: (_, ticks) => ticks.map(String) },
          { ...axis, ...own, size: 66, splits: valueTicks, values: (_, ticks) => ticks.map(tickText) },
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
    drawn.current = data.current;
    return () => {
      made.destroy();
      plot.current = null;
    };
  }, [labels, log, auto, theme, size.width, size.height, box]);

  useEffect(() => {
    if (drawn.current === lines) return;
    drawn.current = lines;
    // Without auto-scale, new points do not change the scale.
    plot.current?.setData(columnsOf(lines, log) as uPlot.AlignedData, auto);
    if (!auto) plot.current?.redraw();
  }, [lines, log, auto]);

  return <div ref={box} className="chart" aria-hidden="true" />;
}
