// Rows of a block's pins; only visible ones are rendered.

import { useEffect, useId, useState } from "react";
import { useSize } from "../ui/useSize";
import { scrollToShow, visibleRange } from "../ui/virtualScroll";
import type { Segment } from "./rows";
import { placeOf } from "./rows";

export const ROW = 22;

interface Props {
  title: string;
  label: string;
  segments: Segment[];
  count: number;
  partners: (row: number) => number;
  lit: ReadonlySet<number>;
  chosen: number | null;
  choose: (row: number | null) => void;
  follow: number | null; // a row to bring into view
  scrolled: (top: number) => void;
}

export function RowList({ title, label, segments, count, partners, lit, chosen, choose, follow, scrolled }: Props) {
  const [box, size] = useSize<HTMLDivElement>();
  const [top, setTop] = useState(0);
  const id = useId();
  const stretch = visibleRange(count, ROW, top, size.height);
  const show = (row: number) => {
    const element = box.current;
    const wanted = element && scrollToShow(count, ROW, element.scrollTop, size.height, row);
    if (element && wanted !== null) element.scrollTop = wanted;
  };
  useEffect(() => {
    if (follow !== null) show(follow);
  }, [follow]); // eslint-disable-line
  useEffect(() => scrolled(top), [top]); // eslint-disable-line
  const walk = (event: React.KeyboardEvent) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -count, End: count }[event.key];
    if (event.key === "Escape" && chosen !== null) choose(null);
    else if (by && !event.altKey) {
      const next = chosen === null ? 0 : Math.max(0, Math.min(count - 1, chosen + by));
      choose(next);
      show(next);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div className="row-side">
      <h3>{label} {segments.map((segment) => segment.label).join(", ")} ({count.toLocaleString("en")})</h3>
      <div ref={box} className="row-list" role="listbox" aria-label={title} tabIndex={0} aria-activedescendant={chosen === null ? undefined : `${id}-${chosen}`} onKeyDown={walk} onScroll={(event) => setTop(event.currentTarget.scrollTop)} onFocus={() => chosen === null && count > 0 && choose(stretch.first)}>
        <div style={{ height: stretch.length, position: "relative" }}>
          {Array.from({ length: Math.max(0, stretch.beyond - stretch.first) }, (_, k) => stretch.first + k).map((row) => {
            const place = segments.length > 1 ? placeOf(segments, row) : null;
            const many = partners(row);
            return (
              <div
                key={row}
                id={`${id}-${row}`}
                role="option"
                aria-selected={lit.has(row)}
                data-row={row}
                className={`trace-row${lit.has(row) ? " lit" : ""}${row === chosen ? " chosen" : ""}${many ? "" : " alone"}`}
                style={{ top: stretch.offset(row), height: ROW }}
                // Not on entering: a list that scrolls to show a row moves others under a pointer that rests.
                onMouseMove={(event) => (event.movementX || event.movementY) && row !== chosen && choose(row)}
              >
                <span>{place ? `${place.segment.label} ${place.row}` : `row ${row}`}</span>
                <span className="quiet">{many === 0 ? "none" : many === 1 ? "1 row" : `${many} rows`}</span>
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}
