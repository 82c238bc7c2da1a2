// All wires of a large page that is zoomed out, drawn on one canvas: thousands of elements would not drag smoothly.

import { useStoreApi } from "@xyflow/react";
import { useEffect, useRef } from "react";
import { useDoc, useStudio } from "../app/store";
import { pinOffset } from "../canvas/layout";
import { wiresOf } from "../page/page";

interface Stroke {
  from: string;
  to: string;
  fromY: number;
  toY: number;
}

export function DistantWires() {
  const page = useDoc()?.page;
  const catalog = useStudio((state) => state.catalog);
  const theme = useStudio((state) => state.theme);
  const flow = useStoreApi();
  const sheet = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    if (!page) return undefined;
    const ops = new Map(page.blocks.map((block) => [block.id, catalog.find(block.op)]));
    const strokes: Stroke[] = wiresOf(page).map((wire) => ({
      from: wire.from.block,
      to: wire.to,
      fromY: pinOffset(ops.get(wire.from.block)?.outputs, wire.from.pin),
      toY: pinOffset(ops.get(wire.to)?.inputs, wire.pin),
    }));
    let frame = 0;
    const draw = () => {
      frame = 0;
      if (sheet.current) stroke(sheet.current, strokes, flow.getState());
    };
    const soon = () => {
      if (!frame) frame = requestAnimationFrame(draw);
    };
    draw();
    const stop = flow.subscribe(soon);
    return () => {
      stop();
      cancelAnimationFrame(frame);
    };
  }, [page, catalog, theme, flow]);
  return <canvas ref={sheet} className="far-wires" aria-hidden="true" />;
}

type FlowState = ReturnType<ReturnType<typeof useStoreApi>["getState"]>;

function stroke(sheet: HTMLCanvasElement, strokes: Stroke[], flow: FlowState): void {
  const { width, height, transform, nodeLookup } = flow;
  if (sheet.width !== width || sheet.height !== height) {
    sheet.width = width;
    sheet.height = height;
  }
  const pen = sheet.getContext("2d")!;
  const [left, top, zoom] = transform;
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.setTransform(zoom, 0, 0, zoom, left, top);
  pen.strokeStyle = getComputedStyle(sheet).color;
  pen.lineWidth = 1 / zoom;
  pen.beginPath();
  for (const { from, to, fromY, toY } of strokes) {
    const source = nodeLookup.get(from);
    const target = nodeLookup.get(to);
    if (!source || !target) continue;
    const begin = source.internals.positionAbsolute;
    const end = target.internals.positionAbsolute;
    const x = begin.x + (source.measured.width ?? 0);
    pen.moveTo(x, begin.y + fromY);
    const middle = (x + end.x) / 2;
    pen.lineTo(middle, begin.y + fromY);
    pen.lineTo(middle, end.y + toY);
    pen.lineTo(end.x, end.y + toY);
  }
  pen.stroke();
}
