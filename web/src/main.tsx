// One bundle for two uses: a page in the browser, opened by an address with a launch secret, and a cell of a notebook.

import type { Root } from "react-dom/client";
import { createRoot } from "react-dom/client";
import { App, ErrorBoundary } from "./app/App";
import type { BottomTab } from "./app/store";
import { get, set } from "./app/store";
import { connect, open } from "./project/pages";
import { HttpTransport, takeLaunch } from "./transport/http";
import type { KernelModel } from "./transport/kernel";
import { KernelTransport } from "./transport/kernel";
import "./styles/studio.css";

const PANELS: BottomTab[] = ["results", "trend", "map", "trace", "messages", "history"];

const home = document.getElementById("studio");
if (home) {
  const query = new URLSearchParams(location.search);
  createRoot(home).render(<ErrorBoundary><App /></ErrorBoundary>);
  const transport = new HttpTransport(new URL("./", location.href).href, takeLaunch());
  void connect(transport, query.get("page"));
  // Pasting an address into this window may change only the fragment, and so load nothing.
  window.addEventListener("hashchange", () => {
    const launch = takeLaunch();
    const page = query.get("page");
    if (launch !== null) void transport.enter(launch).then(() => (get().failure ? location.reload() : page !== null && void open(page)));
  });
}

/** A notebook calls this for each view of the widget. */
function render({ model, el }: { model: KernelModel; el: HTMLElement }): () => void {
  const box = document.createElement("div");
  box.className = "rowgrad-widget";
  box.style.height = `${Number(model.get("height"))}px`;
  el.append(box);
  const root: Root = createRoot(box);
  set({ embedded: true });
  root.render(<ErrorBoundary><App /></ErrorBoundary>);
  const connected = connect(new KernelTransport(model), String(model.get("page_name"))).then((leave) => {
    showFirst(String(model.get("panel") ?? ""), model.get("shown"));
    return leave;
  });
  return () => {
    root.unmount();
    void connected.then((leave) => leave());
  };
}

/** Open a panel with a result: what Python asked to be shown. The panels beside the canvas are closed, for cells are narrow. */
function showFirst(panel: string, shown: unknown): void {
  if (!PANELS.includes(panel as BottomTab)) return;
  const [block, pin] = Array.isArray(shown) ? (shown as string[]) : [];
  set({ bottom: panel as BottomTab, bottomOpen: true, paletteOpen: false, inspectorOpen: false, minimap: false, ...(block && pin ? { shown: { block, pin, entry: null } } : {}) });
}

export default { render };
