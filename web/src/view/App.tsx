// The whole page: bars above, palette left, drawing in the middle, inspector right, results below.

import { ReactFlowProvider } from "@xyflow/react";
import { useEffect, useRef } from "react";
import { listenToKeys } from "../state/keyboard";
import type { StudioState } from "../state/store";
import { useDoc, useStudio } from "../state/store";
import { Bottom } from "./Bottom";
import { Canvas } from "./Canvas";
import { Dialogs } from "./Dialogs";
import { ImportDrop } from "./ImportDrop";
import { Inspector } from "./Inspector";
import { Palette } from "./Palette";
import { RunBar } from "./RunBar";
import { StartScreen } from "./StartScreen";
import { Toasts } from "./Toasts";
import { TopBar } from "./TopBar";

export function App() {
  const root = useRef<HTMLDivElement>(null);
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
    const listener = embedded ? root.current : window;
    return listener ? listenToKeys(listener) : undefined;
  }, [embedded, ready]);
  if (failure) return <Failure text={failure} />;
  if (!ready) return <main className="studio" data-theme={theme}><p className="loading" role="status">Loading …</p></main>;
  return (
    <ReactFlowProvider>
      <div className="studio" data-theme={theme} ref={root} tabIndex={-1}>
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
              {bottom && <Bottom />}
            </div>
          </>
        )}
        <Dialogs />
        <ImportDrop />
        <Toasts />
      </div>
    </ReactFlowProvider>
  );
}

function panelSizes(sizes: StudioState["sizes"]): React.CSSProperties {
  const told = Object.entries(sizes).map(([panel, size]) => [`--${panel}`, `${size}px`]);
  return Object.fromEntries(told) as React.CSSProperties;
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
