// The edge of a panel: dragging it, or arrow keys, resize the panel.

import { set, useStudio } from "../app/store";

const STEP = 24;
const BOUNDS = { bottom: [80, 900], inspector: [180, 900], palette: [120, 600] } as const;
export type Panel = keyof typeof BOUNDS;

function resize(panel: Panel, size: number): void {
  const [least, most] = BOUNDS[panel];
  const limit = panel === "bottom" ? window.innerHeight * 0.8 : window.innerWidth * 0.45;
  const next = Math.round(Math.max(least, Math.min(size, most, limit)));
  set((state) => ({ sizes: { ...state.sizes, [panel]: next } }));
}

export function Splitter({ panel, label }: { panel: Panel; label: string }) {
  const size = useStudio((state) => state.sizes[panel]);
  const level = panel === "bottom";
  const towards = panel === "palette" ? 1 : -1; // the palette grows to the right, the others to the left or upwards
  const [least, most] = BOUNDS[panel];
  const drag = (event: React.PointerEvent<HTMLDivElement>) => {
    const from = level ? event.clientY : event.clientX;
    const before = size ?? (level ? event.currentTarget.parentElement!.clientHeight : event.currentTarget.parentElement!.clientWidth);
    const edge = event.currentTarget;
    edge.setPointerCapture(event.pointerId);
    const move = (now: PointerEvent) => resize(panel, before + towards * ((level ? now.clientY : now.clientX) - from));
    const up = () => {
      edge.removeEventListener("pointermove", move);
      edge.removeEventListener("pointerup", up);
    };
    edge.addEventListener("pointermove", move);
    edge.addEventListener("pointerup", up);
  };
  const press = (event: React.KeyboardEvent<HTMLDivElement>) => {
    const [back, on] = level ? ["ArrowDown", "ArrowUp"] : towards > 0 ? ["ArrowLeft", "ArrowRight"] : ["ArrowRight", "ArrowLeft"];
    const by = event.key === on ? STEP : event.key === back ? -STEP : 0;
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const box = event.currentTarget.parentElement!;
    resize(panel, (size ?? (level ? box.clientHeight : box.clientWidth)) + by);
  };
  return (
    <div
      className={`splitter at-${panel}`}
      role="separator"
      tabIndex={0}
      aria-label={label}
      aria-orientation={level ? "horizontal" : "vertical"}
      aria-valuenow={size ?? least}
      aria-valuemin={least}
      aria-valuemax={most}
      onPointerDown={drag}
      onKeyDown={press}
    />
  );
}
