// The panel at the bottom: results, trend, heat map, trace, messages, history.

import { HeatMapPanel } from "../heatmap/HeatMapPanel";
import { HistoryPanel } from "../history/HistoryPanel";
import { MessagesPanel } from "../messages/MessagesPanel";
import { ResultsPanel } from "../results/ResultsPanel";
import { TracePanel } from "../trace/TracePanel";
import { TrendPanel } from "../trend/TrendPanel";
import { Splitter } from "../ui/Splitter";
import type { BottomTab } from "./store";
import { set, useStudio } from "./store";

interface Panel {
  tab: BottomTab;
  title: string;
  view: () => React.ReactNode;
}

const TABLE: (Panel | false)[] = [
  FEATURES.results && { tab: "results", title: "Results", view: () => <ResultsPanel /> },
  FEATURES.trend && { tab: "trend", title: "Trend", view: () => <TrendPanel /> },
  FEATURES.heatMap && { tab: "map", title: "Heat map", view: () => <HeatMapPanel /> },
  FEATURES.trace && { tab: "trace", title: "Trace", view: () => <TracePanel /> },
  FEATURES.messages && { tab: "messages", title: "Messages", view: () => <MessagesPanel /> },
  FEATURES.history && { tab: "history", title: "History", view: () => <HistoryPanel /> },
];
const PANELS = TABLE.filter((panel) => panel !== false);

export function BottomPanel() {
  const tab = useStudio((state) => state.bottom);
  const messages = useStudio((state) => state.messages.length);
  const panel = PANELS.find((one) => one.tab === tab) ?? PANELS[0];
  if (!panel) return null;
  return (
    <section className="below" aria-label="Results and messages">
      <Splitter panel="bottom" label="Height of the results" />
      <div className="bottom-tabs">
        <div role="tablist" aria-label="Panels">
        {PANELS.map((one) => (
          <button key={one.tab} role="tab" id={`bottom-${one.tab}`} aria-selected={one === panel} aria-controls="bottom-panel" className={one === panel ? "active" : ""} onClick={() => set({ bottom: one.tab })}>
            {one.title}{one.tab === "messages" && messages ? ` (${messages})` : ""}
          </button>
        ))}
        </div>
        <button className="plain right" aria-label="Hide the panel" onClick={() => set({ bottomOpen: false })}>▾</button>
      </div>
      <div className="bottom-panel" role="tabpanel" id="bottom-panel" aria-labelledby={`bottom-${panel.tab}`} tabIndex={0}>
        {panel.view()}
      </div>
    </section>
  );
}
