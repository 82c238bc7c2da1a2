// The panel at the bottom: results, trend, heat map, trace, messages, history.

import * as Tabs from "@radix-ui/react-tabs";
import type { LucideIcon } from "lucide-react";
import { ChevronDown, Grid3x3, History, LineChart, MessageSquareWarning, Table2, Waypoints } from "lucide-react";
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
  icon: LucideIcon;
  view: () => React.ReactNode;
}

const TABLE: (Panel | false)[] = [
  FEATURES.results && { tab: "results", title: "Results", icon: Table2, view: () => <ResultsPanel /> },
  FEATURES.trend && { tab: "trend", title: "Trend", icon: LineChart, view: () => <TrendPanel /> },
  FEATURES.heatMap && { tab: "map", title: "Heat map", icon: Grid3x3, view: () => <HeatMapPanel /> },
  FEATURES.trace && { tab: "trace", title: "Trace", icon: Waypoints, view: () => <TracePanel /> },
  FEATURES.messages && { tab: "messages", title: "Messages", icon: MessageSquareWarning, view: () => <MessagesPanel /> },
  FEATURES.history && { tab: "history", title: "History", icon: History, view: () => <HistoryPanel /> },
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
      <Tabs.Root className="bottom-root" value={panel.tab} onValueChange={(next) => set({ bottom: next as BottomTab })}>
        <div className="bottom-tabs">
          <Tabs.List aria-label="Panels" className="bottom-list">
            {PANELS.map(({ tab: one, title, icon: Icon }) => (
              <Tabs.Trigger key={one} value={one} id={`bottom-${one}`} aria-controls={one === panel.tab ? "bottom-panel" : undefined} className={one === panel.tab ? "active" : ""}>
                <Icon size={14} aria-hidden="true" />
                <span className="tab-title">{title}{one === "messages" && messages ? ` (${messages})` : ""}</span>
              </Tabs.Trigger>
            ))}
          </Tabs.List>
          <button className="plain icon" aria-label="Hide the panel" onClick={() => set({ bottomOpen: false })}><ChevronDown size={16} aria-hidden="true" /></button>
        </div>
        <Tabs.Content className="bottom-panel" value={panel.tab} id="bottom-panel" aria-labelledby={`bottom-${panel.tab}`}>
          {panel.view()}
        </Tabs.Content>
      </Tabs.Root>
    </section>
  );
}
