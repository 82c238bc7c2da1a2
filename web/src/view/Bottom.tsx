// What is looked at: results, trend, heat map, trace, messages, history.

import type { BottomTab } from "../state/store";
import { set, useStudio } from "../state/store";
import type { Feature } from "../state/features";
import { has } from "../state/features";
import { Splitter } from "./Splitter";
import { HistoryPanel } from "./HistoryPanel";
import { MessagesPanel } from "./MessagesPanel";
import { MapPanel } from "./look/MapPanel";
import { ResultsPanel } from "./look/ResultsPanel";
import { TracePanel } from "./look/TracePanel";
import { TrendPanel } from "./look/TrendPanel";

const PANELS: { tab: BottomTab; title: string; feature: Feature; view: () => React.ReactNode }[] = [
  { tab: "results", title: "Results", feature: "results", view: () => <ResultsPanel /> },
  { tab: "trend", title: "Trend", feature: "trend", view: () => <TrendPanel /> },
  { tab: "map", title: "Heat map", feature: "heat-map", view: () => <MapPanel /> },
  { tab: "trace", title: "Trace", feature: "trace", view: () => <TracePanel /> },
  { tab: "messages", title: "Messages", feature: "messages", view: () => <MessagesPanel /> },
  { tab: "history", title: "History", feature: "history", view: () => <HistoryPanel /> },
];

export function Bottom() {
  const tab = useStudio((state) => state.bottom);
  const messages = useStudio((state) => state.messages.length);
  const shown = PANELS.filter((panel) => has(panel.feature));
  const panel = shown.find((one) => one.tab === tab) ?? shown[0];
  if (!panel) return null;
  return (
    <section className="below" aria-label="Results and messages">
      <Splitter panel="bottom" label="Height of the results" />
      <div className="bottom-tabs">
        <div role="tablist" aria-label="Panels">
        {shown.map((one) => (
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
