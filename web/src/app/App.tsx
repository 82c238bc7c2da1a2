// The whole page: bars at the top, palette left, canvas in the middle, inspector right, results at the bottom.

import { Provider as TooltipProvider } from "@radix-ui/react-tooltip";
import { ReactFlowProvider } from "@xyflow/react";
import type { ReactNode } from "react";
import { Component, useEffect, useState } from "react";
import { Inspector } from "../blocks/Inspector";
import { Canvas } from "../canvas/Canvas";
import { CanvasMenu } from "../canvas/CanvasMenu";
import { BlockFinder } from "../palette/BlockFinder";
import { listenToKeys } from "../commands/keyboard";
import { ImportDrop } from "../import/ImportDialog";
import { Toasts } from "../messages/MessagesPanel";
import { Palette } from "../palette/Palette";
import { saveAll } from "../project/autosave";
import { StartScreen } from "../project/StartScreen";
import { RunBar } from "../run/RunBar";
import { TourCard } from "../tour/TourCard";
import { PortalProvider } from "../ui/portal";
import { BottomPanel } from "./BottomPanel";
import { Dialogs } from "./Dialogs";
import type { StudioState } from "./store";
import { get, set, useDoc, useStudio } from "./store";
import { TopBar } from "./TopBar";

const NARROW = 901; // pixels

export function App() {
  const [root, setRoot] = useState<HTMLDivElement | null>(null);
  const theme = useStudio((state) => state.theme);
  const start = useStudio((state) => state.start);
  const ready = useStudio((state) => state.hello !== null);
  const failure = useStudio((state) => state.failure);
  const palette = useStudio((state) => state.paletteOpen) && FEATURES.palette;
  const inspector = useStudio((state) => state.inspectorOpen);
  const bottom = useStudio((state) => state.bottomOpen);
  const sizes = useStudio((state) => state.sizes);
  const open = useDoc() !== null;
  const embedded = useStudio((state) => state.embedded);
  useEffect(() => {
    const listener = embedded ? root : window;
    return listener ? listenToKeys(listener) : undefined;
  }, [embedded, ready, root]);
  const narrow = useStudio((state) => state.narrow);
  useEffect(() => (root ? watchWidth(root) : undefined), [root]);
  if (failure) return <Failure text={failure} />;
  if (!ready) return <main className="studio" data-theme={theme}><p className="loading" role="status">Loading …</p></main>;
  return (
    <ReactFlowProvider>
      <TooltipProvider delayDuration={500} skipDelayDuration={200}>
      <PortalProvider value={root}>
      <div className={`studio${narrow ? " narrow" : ""}`} data-theme={theme} ref={setRoot} tabIndex={-1}>
        <TopBar />
        {start || !open ? (
          <StartScreen />
        ) : (
          <>
            <RunBar />
            <div className={`desk${palette ? "" : " no-palette"}${inspector ? "" : " no-inspector"}${bottom ? "" : " no-bottom"}`} style={panelSizes(sizes)}>
              {palette && <Palette />}
              <main className="middle" aria-label="Page">
                <Canvas />
              </main>
              {inspector && <Inspector />}
              {bottom && <BottomPanel />}
            </div>
          </>
        )}
        <CanvasMenu />
        <BlockFinder />
        {!start && <TourCard />}
        <Dialogs />
        <ImportDrop />
        <Toasts />
      </div>
      </PortalProvider>
      </TooltipProvider>
    </ReactFlowProvider>
  );
}

/** Below a width the panels at the sides close; they open again, over the canvas, on request. */
function watchWidth(root: HTMLElement): () => void {
  const watcher = new ResizeObserver(() => {
    const narrow = root.clientWidth < NARROW;
    if (narrow === get().narrow) return;
    set({ narrow, paletteOpen: !narrow, inspectorOpen: !narrow });
  });
  watcher.observe(root);
  return () => watcher.disconnect();
}

function panelSizes(sizes: StudioState["sizes"]): React.CSSProperties {
  const variables = Object.entries(sizes).map(([panel, size]) => [`--${panel}`, `${size}px`]);
  return Object.fromEntries(variables) as React.CSSProperties;
}

function Failure({ text }: { text: string }) {
  return (
    <main className="studio failure" data-theme="system">
      <h1>rowgrad Studio</h1>
      <p role="alert">{text}</p>
      <p>Every address that <code>rowgrad studio</code> prints opens the studio once. <code>rowgrad studio --link</code> prints a new one.</p>
    </main>
  );
}

export class ErrorBoundary extends Component<{ children: ReactNode }, { fault: Error | null }> {
  override state = { fault: null as Error | null };

  static getDerivedStateFromError(fault: Error) {
    return { fault };
  }

  override componentDidCatch(): void {
    saveAll();
  }

  override render() {
    const { fault } = this.state;
    if (!fault) return this.props.children;
    return (
      <main className="studio failure" data-theme="system">
        <h1>Something went wrong on this page</h1>
        <p role="alert">{fault.message}</p>
        <p>What you have drawn is kept. A reload goes on from there.</p>
        <button className="primary" onClick={() => location.reload()}>Reload</button>
      </main>
    );
  }
}
