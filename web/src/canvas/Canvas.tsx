// The canvas: blocks, wires and notes of the active page. React Flow draws and drags; the page in the store is the truth.

import type { Connection, Edge, EdgeChange, FinalConnectionState, MiniMapNodeProps, Node, NodeChange, OnConnectStartParams, ReactFlowState } from "@xyflow/react";
import {
  Background,
  BackgroundVariant,
  MiniMap,
  Panel,
  ReactFlow,
  SelectionMode,
  applyNodeChanges,
  getViewportForBounds,
  useNodesInitialized,
  useReactFlow,
  useStore,
  useStoreApi,
} from "@xyflow/react";
import { LayoutDashboard, Maximize, ZoomIn, ZoomOut } from "lucide-react";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { shallow } from "zustand/shallow";
import type { MenuTarget } from "../app/store";
import { changeDoc, doc, get, set, useDoc, useStudio } from "../app/store";
import { BlockNode } from "../blocks/BlockNode";
import { CommandButton } from "../commands/CommandButton";
import { perform } from "../commands/commands";
import { NoteNode } from "../notes/Note";
import { amend, connectWire, fetchCandidates, place, reportRejection, select, viewport, wireOf } from "../page/actions";
import { blockOf, endText, entryText, notesOf } from "../page/page";
import { insertOnWire } from "../page/placing";
import type { Page } from "../transport/protocol";
import { familyOf } from "../palette/families";
import { TraceNote } from "../trace/TraceNote";
import { DistantWires } from "../wires/DistantWires";
import { WireEdge } from "../wires/WireEdge";
import { WireHover, hoverWire, leaveWire } from "../wires/WireHover";
import type { Size } from "./layout";
import { GRID, boundsOf, makeSpace, positionsOf, rendered, roomForResults } from "./layout";
import { beginDrag, recordMoves, withFrameContents } from "./moves";
import { edgesOf, endOfHandle, nodesOf, noteNumber } from "./nodes";
import { beginningOf, canvasView, panExtent } from "./view";

export const OP_MIME_TYPE = "application/x-rowgrad-op";
const NODE_TYPES = { block: BlockNode, note: NoteNode };
const EDGE_TYPES = { wire: WireEdge };
const MANY = 150; // with more blocks than this, only visible ones are rendered
const MARGIN = 24; // pixels between a block that is moved into view and the edge
const FAR = 0.42; // zoom below which text is unreadable
const PADDING = { x: 0.05, top: 0.07, bottom: "64px" } as const; // around a whole page, and below it for the zoom buttons
const LEAST = 0.6; // zoom of a page that opens too large for its text to be read as a whole
const EDGE = 100; // pixels of the page that stay in view at least

export function Canvas() {
  const open = useDoc();
  const name = open?.name ?? null;
  const page = open?.page;
  const catalog = useStudio((state) => state.catalog);
  const minimap = useStudio((state) => state.minimap);
  const snapping = useStudio((state) => state.snapping);
  const flow = useReactFlow();
  const far = useStore((state) => state.transform[2] < FAR);
  const [nodes, setNodes] = useState<Node[]>([]);
  const pointer = useRef<{ at: [number, number] | null }>({ at: null });

  useLayoutEffect(() => {
    if (open) setNodes((before) => nodesOf(open.page, catalog, open.blocks, open.notes, before));
  }, [open?.page, open?.blocks, open?.notes, catalog]);
  const light = far && (page?.blocks.length ?? 0) > MANY;
  useEffect(() => {
    set({ light });
  }, [light]);
  const edges = useMemo(() => (page && !light ? edgesOf(page, catalog, open!.wires) : []), [page, catalog, light, open?.wires]);

  useEffect(() => {
    viewport.centre = () => {
      const box = document.querySelector(".canvas")?.getBoundingClientRect();
      if (!box) return [100, 100];
      const middle = flow.screenToFlowPosition({ x: box.x + box.width / 2, y: box.y + box.height / 2 });
      return [middle.x - 100, middle.y - 60];
    };
    viewport.pointer = () => {
      const { at } = pointer.current;
      if (!at) return null;
      const { x, y } = flow.screenToFlowPosition({ x: at[0], y: at[1] });
      return [x, y];
    };
    rendered.sizes = () => {
      const sizes = new Map<string, Size>();
      for (const { id, measured } of flow.getNodes()) if (measured?.width && measured.height) sizes.set(id, { width: measured.width, height: measured.height });
      return sizes;
    };
    rendered.withResults = (id) => {
      const height = flow.getInternalNode(id)?.measured.height ?? 0;
      return resultsHeight(id) ? height : height + roomForResults(Object.values(doc()?.checked.blocks[id]?.outputs ?? {}).flat());
    };
    // On an empty page, fitView would wait for the first block and then jump.
    canvasView.fit = () => void (flow.getNodes().length && flow.fitView({ padding: PADDING, maxZoom: 1 }));
    canvasView.zoom = (by) => void flow.zoomTo(flow.getZoom() * by);
    canvasView.actual = () => void flow.zoomTo(1);
    canvasView.reveal = (id) => {
      const box = document.querySelector(".canvas")?.getBoundingClientRect();
      const node = flow.getInternalNode(id);
      if (!box || !node) return;
      const { x, y } = node.internals.positionAbsolute;
      const [width, height] = [node.measured.width ?? node.initialWidth ?? 0, node.measured.height ?? node.initialHeight ?? 0];
      const near = flow.flowToScreenPosition({ x, y });
      const far = flow.flowToScreenPosition({ x: x + width, y: y + height });
      const shift = (from: number, to: number, low: number, high: number) => (from < low ? low - from : to > high ? Math.max(high - to, low - from) : 0);
      const [right, down] = [shift(near.x, far.x, box.left + MARGIN, box.right - MARGIN), shift(near.y, far.y, box.top + MARGIN, box.bottom - MARGIN)];
      const now = flow.getViewport();
      if (right || down) void flow.setViewport({ ...now, x: now.x + right, y: now.y + down }, { duration: 150 });
    };
  }, [flow]);

  // A page that becomes active is fully visible from its first frame on; of a large one that is its beginning.
  const showPage = useCallback(() => {
    const box = document.querySelector(".canvas")?.getBoundingClientRect();
    const shown = doc();
    if (!box || !shown) return;
    const sizes = rendered.sizes();
    const { blocks } = shown.page;
    const bounds = blocks.length && blocks.every(({ id }) => sizes.has(id)) ? flow.getNodesBounds(flow.getNodes()) : boundsOf(shown.page, get().catalog);
    const whole = getViewportForBounds(bounds, box.width, box.height, 0.05, 1, PADDING);
    void flow.setViewport(whole.zoom < FAR ? beginningOf(bounds, [...positionsOf(shown.page).values()], box, LEAST, MARGIN) : whole);
  }, [flow]);
  useLayoutEffect(showPage, [name, showPage]);
  // The blocks' true sizes are known once they are rendered.
  const measured = useNodesInitialized();
  const fitted = useRef<string | null>(null);
  useEffect(() => {
    // A page that starts empty does not move when its first block is placed.
    if (fitted.current === name || (!measured && doc()?.page.blocks.length)) return;
    fitted.current = name;
    if (measured) showPage();
  }, [measured, name, showPage]);

  useEffect(() => {
    const show = (event: Event) => {
      const { id } = (event as CustomEvent<{ id: string }>).detail;
      void flow.fitView({ nodes: [{ id }], padding: 0.4, maxZoom: Math.max(1, flow.getZoom()), duration: 200 });
    };
    window.addEventListener("rowgrad:show", show);
    return () => window.removeEventListener("rowgrad:show", show);
  }, [flow]);

  const resultHeights = useRef({ page: name, of: new Map<string, number>() });
  const onNodesChange = useCallback((changes: NodeChange[]) => {
    const all = withFrameContents(changes);
    setNodes((before) => applyNodeChanges(all, before));
    recordSelection(all);
    recordMoves(all);
    if (resultHeights.current.page !== get().active) resultHeights.current = { page: get().active, of: new Map() };
    const grown = grownResults(changes, resultHeights.current.of);
    if (!grown.size || !FEATURES.makeSpace) return;
    const sizes = new Map(rendered.sizes());
    for (const c of changes) if (c.type === "dimensions" && c.dimensions) sizes.set(c.id, c.dimensions);
    amend((page) => makeSpace(page, sizes, grown));
  }, []);

  const onEdgesChange = useCallback((changes: EdgeChange[]) => {
    const now = doc();
    const chosen = changes.filter((c) => c.type === "select");
    if (!now || !chosen.length) return;
    const wires = new Set(now.wires);
    for (const c of chosen) if (c.selected) wires.add(c.id); else wires.delete(c.id);
    changeDoc(now.name, { wires });
  }, []);

  const onConnectStart = useCallback((_: unknown, from: OnConnectStartParams) => {
    if (!from.nodeId || !from.handleId) return;
    const side = from.handleType === "source" ? "from" : "to";
    const end = endOfHandle(from.nodeId, from.handleId);
    set({ drag: { end, side, takes: null } });
    void fetchCandidates(end, side).then((takes) => {
      if (get().drag?.end === end) set({ drag: { end, side, takes } });
    });
  }, []);

  const isValid = useCallback((wire: Connection | Edge) => {
    const { drag } = get();
    if (!drag?.takes || !wire.sourceHandle || !wire.targetHandle) return true;
    const other = drag.side === "from" ? endOfHandle(wire.target, wire.targetHandle) : endOfHandle(wire.source, wire.sourceHandle);
    return drag.takes[endText(other)] === null;
  }, []);

  const onConnect = useCallback((wire: Connection) => {
    if (!wire.sourceHandle || !wire.targetHandle) return;
    const to = endOfHandle(wire.target, wire.targetHandle);
    void connectWire(endOfHandle(wire.source, wire.sourceHandle), to.block, to.pin);
  }, []);

  const onConnectEnd = useCallback(
    (event: MouseEvent | TouchEvent, state: FinalConnectionState) => {
      const { drag } = get();
      set({ drag: null });
      if (!drag) return;
      const target = document.elementFromPoint(...pointOf(event));
      if (!state.toHandle && target?.classList.contains("react-flow__pane")) {
        const at = pointOf(event);
        const { x, y } = flow.screenToFlowPosition({ x: at[0], y: at[1] });
        set({ finder: { at, place: [x, y], drag: { end: drag.end, side: drag.side }, wire: null } });
        return;
      }
      if (state.isValid || !state.toHandle?.id || !drag.takes) return;
      const other = endOfHandle(state.toHandle.nodeId, state.toHandle.id);
      const reason = drag.takes[endText(other)];
      const into = drag.side === "from" ? other : drag.end;
      const from = drag.side === "from" ? drag.end : other;
      if (reason && FEATURES.rejections) void reportRejection(from, into.block, into.pin, reason);
    },
    [flow],
  );

  const openMenu = useCallback(
    (event: React.MouseEvent | MouseEvent, target: MenuTarget) => {
      event.preventDefault();
      const { x, y } = flow.screenToFlowPosition({ x: event.clientX, y: event.clientY });
      const open = doc();
      if (!open) return;
      // The menu is about the selection if it was opened on a part of that.
      if ((target.kind === "block" || target.kind === "pin") && !open.blocks.has(target.block)) select([target.block]);
      if (target.kind === "note" && !open.notes.has(target.k)) select([], [target.k]);
      if (target.kind === "wire") select([], [], [target.wire]);
      set({ menu: { at: [event.clientX, event.clientY], place: [x, y], target } });
    },
    [flow],
  );
  const onContextMenu = useCallback(
    (event: React.MouseEvent) => {
      if (!(event.target instanceof Element) || event.target.closest("input, textarea")) return; // fields have the browser's
      const target = targetAt(event.target);
      if (target) openMenu(event, target);
    },
    [openMenu],
  );
  const onDoubleClick = useCallback(
    (event: React.MouseEvent) => {
      if (!(event.target instanceof Element) || !event.target.classList.contains("react-flow__pane")) return;
      const { x, y } = flow.screenToFlowPosition({ x: event.clientX, y: event.clientY });
      set({ finder: { at: [event.clientX, event.clientY], place: [x, y], drag: null, wire: null } });
    },
    [flow],
  );

  const onDrop = useCallback(
    (event: React.DragEvent) => {
      const op = event.dataTransfer.getData(OP_MIME_TYPE);
      if (!op) return;
      event.preventDefault();
      event.stopPropagation();
      const at = flow.screenToFlowPosition({ x: event.clientX, y: event.clientY });
      const wire = wireUnder(event.clientX, event.clientY);
      const found = wire && wireOf(doc()!.page, wire);
      if (found) void insertOnWire(op, found, [at.x - 60, at.y - 16]);
      else place(op, [at.x - 60, at.y - 16]);
    },
    [flow],
  );

  const running = open?.run?.phase === "running" && open.page.blocks.length <= MANY;
  const whole = useStore((state) => isWhole(state));
  if (!open) return null;
  const classes = ["canvas", far && "far", light && "light", running && "running", whole && "whole"].filter(Boolean).join(" ");
  return (
    <div
      className={classes}
      onDrop={onDrop}
      onDragOver={allowDrop}
      onContextMenu={onContextMenu}
      onDoubleClick={onDoubleClick}
      onPointerMove={(event) => (pointer.current.at = [event.clientX, event.clientY])}
      onPointerLeave={() => (pointer.current.at = null)}
      onFocus={onFocus}
      onBlur={leaveWire}
      data-testid="canvas"
    >
      <ReactFlow
        nodes={nodes}
        edges={edges}
        nodeTypes={NODE_TYPES}
        edgeTypes={EDGE_TYPES}
        onInit={showPage}
        onNodesChange={onNodesChange}
        onEdgesChange={onEdgesChange}
        onConnectStart={onConnectStart}
        onConnect={onConnect}
        onConnectEnd={onConnectEnd}
        isValidConnection={isValid}
        onEdgeMouseEnter={(event, wire) => event.buttons === 0 && hoverWire(wire.id, [event.clientX, event.clientY])}
        onEdgeMouseLeave={leaveWire}
        onMoveStart={leaveWire}
        onPaneClick={leavePanels}
        onPaneContextMenu={(event) => openMenu(event, { kind: "canvas" })}
        onNodeDragStart={(event) => beginDrag(event.altKey)}
        onSelectionDragStart={(event) => beginDrag(event.altKey)}
        onNodeDoubleClick={() => perform("edit-block")}
        snapToGrid={snapping && FEATURES.gridSnap}
        snapGrid={[GRID, GRID]}
        selectionMode={SelectionMode.Partial}
        selectionOnDrag={FEATURES.multiSelect && !TOUCH}
        selectionKeyCode={FEATURES.multiSelect ? "Shift" : null}
        multiSelectionKeyCode={FEATURES.multiSelect ? ["Shift", "Meta", "Control"] : null}
        panOnDrag={FEATURES.multiSelect && !TOUCH ? [1, 2] : true}
        panActivationKeyCode="Space"
        panOnScroll={FEATURES.zoom}
        zoomOnScroll={false}
        zoomOnPinch={FEATURES.zoom}
        zoomOnDoubleClick={false}
        deleteKeyCode={null}
        minZoom={0.05}
        maxZoom={FEATURES.zoom ? 4 : 1}
        connectionRadius={28}
        onlyRenderVisibleElements={open.page.blocks.length > MANY}
        nodesFocusable
        edgesFocusable
        elevateNodesOnSelect
        proOptions={{ hideAttribution: true }}
        aria-label={`The page ${open.name}`}
      >
        <Background variant={BackgroundVariant.Dots} gap={2 * GRID} size={1} />
        {light && <DistantWires />}
        {FEATURES.trace && <TraceNote />}
        {minimap && FEATURES.minimap && <MiniMap pannable zoomable ariaLabel="Minimap" nodeComponent={MiniNode} />}
        <ZoomTools />
        {FEATURES.zoom && <KeepInView page={open.page} />}
      </ReactFlow>
      <WireHover />
      {!open.page.blocks.length && !notesOf(open.page).length && (
        <p className="canvas-hint">
          <b>This page is empty</b>
          Double-click to place a block, or press / to search the palette.
        </p>
      )}
    </div>
  );
}

/** The height of a block's results on the canvas, 0 before the first run. */
function resultsHeight(block: string): number {
  return document.querySelector<HTMLElement>(`[data-block="${CSS.escape(block)}"] .block-results`)?.offsetHeight ?? 0;
}

/** How much higher the results of resized blocks have become. `known` has the heights of their results before. */
function grownResults(changes: readonly NodeChange[], known: Map<string, number>): Map<string, number> {
  const grown = new Map<string, number>();
  for (const c of changes) {
    if (c.type !== "dimensions" || noteNumber(c.id) !== null) continue;
    const [before, now] = [known.get(c.id), resultsHeight(c.id)];
    known.set(c.id, now);
    if (before !== undefined && now > before) grown.set(c.id, now - before);
  }
  return grown;
}

/** The wire that has the focus of the keyboard shows its values, as the one under the pointer does. */
function onFocus({ target }: React.FocusEvent): void {
  const wire = target.matches(".react-flow__edge:focus-visible") ? (target as HTMLElement).dataset["id"] : undefined;
  if (wire === undefined) return;
  const { x, y, width, height } = target.getBoundingClientRect();
  hoverWire(wire, [x + width / 2, y + height / 2]);
}

/** A click beside everything: nothing is selected, and panels that cover a narrow canvas close. */
function leavePanels(): void {
  select([]);
  if (get().narrow && FEATURES.narrowPanels) set({ paletteOpen: false, inspectorOpen: false });
}

function allowDrop(event: React.DragEvent): void {
  if (event.dataTransfer.types.includes(OP_MIME_TYPE)) event.preventDefault();
}

const TOUCH = typeof matchMedia === "function" && matchMedia("(pointer: coarse)").matches; // a finger moves the page

function ZoomTools() {
  const zoom = useStore((state) => Math.round(100 * state.transform[2]));
  if (!FEATURES.zoom) return null;
  return (
    <Panel position="bottom-left" className="canvas-tools">
      <CommandButton id="zoom-out" icon={ZoomOut} />
      <CommandButton id="zoom-actual" text={`${zoom} %`} className="zoom-level" />
      <CommandButton id="zoom-in" icon={ZoomIn} />
      <CommandButton id="fit" icon={Maximize} />
      <CommandButton id="layout" icon={LayoutDashboard} />
    </Panel>
  );
}

/** A block in the minimap, in the colour of its family. */
function MiniNode({ id, x, y, width, height }: MiniMapNodeProps) {
  const family = useStudio((state) => {
    const open = state.docs[state.active ?? ""];
    return open && familyOf(state.catalog.find(blockOf(open.page, id)?.op ?? "")).name;
  });
  const note = noteNumber(id) !== null;
  return <rect className={`react-flow__minimap-node ${note ? "mini-note" : "mini-block"}`} data-family={note ? undefined : family} x={x} y={y} width={width} height={height} rx={note ? 4 : 12} />;
}

/** Part of the page stays in view, however far it is moved. */
function KeepInView({ page }: { page: Page }) {
  const catalog = useStudio((state) => state.catalog);
  const store = useStoreApi();
  const [width, height, zoom] = useStore(({ width, height, transform }): [number, number, number] => [width, height, transform[2]], shallow);
  const bounds = useMemo(() => boundsOf(page, catalog), [page, catalog]);
  useEffect(() => store.getState().setTranslateExtent(panExtent(bounds, width / zoom, height / zoom, EDGE / zoom)), [store, bounds, width, height, zoom]);
  return null;
}

/** Whether the whole page is in view, with nothing beyond the edges. */
function isWhole({ nodes, nodeLookup, transform: [left, top, zoom], width, height }: ReactFlowState): boolean {
  if (nodes.length > MANY) return false;
  for (const node of nodeLookup.values()) {
    const { x, y } = node.internals.positionAbsolute;
    const [from, above] = [left + x * zoom, top + y * zoom];
    if (from < 0 || above < 0 || from + (node.measured.width ?? 0) * zoom > width || above + (node.measured.height ?? 0) * zoom > height) return false;
  }
  return true;
}

function pointOf(event: MouseEvent | TouchEvent): [number, number] {
  const point = "changedTouches" in event ? event.changedTouches[0]! : event;
  return [point.clientX, point.clientY];
}

/** What a context menu on an element is about; null on the empty canvas, where the right button also moves the page. */
function targetAt(element: Element): MenuTarget | null {
  const id = element.closest<HTMLElement>(".react-flow__node")?.dataset["id"];
  if (id !== undefined) {
    const k = noteNumber(id);
    if (k !== null) return { kind: "note", k };
    const row = element.closest<HTMLElement>("[data-pin], [data-out]");
    const handle = element.closest<HTMLElement>("[data-handleid]")?.dataset["handleid"];
    if (handle) {
      const end = endOfHandle(id, handle);
      return { kind: "pin", block: id, pin: entryText(end.pin, end.index), side: handle.startsWith("in:") ? "to" : "from" };
    }
    if (row) return { kind: "pin", block: id, pin: row.dataset["pin"] ?? row.dataset["out"]!, side: row.dataset["pin"] === undefined ? "from" : "to" };
    return { kind: "block", block: id };
  }
  const wire = element.closest<HTMLElement>(".react-flow__edge")?.dataset["id"];
  return wire === undefined ? null : { kind: "wire", wire };
}

/** The wire at a point of the window, for a block that is dropped onto it. */
function wireUnder(x: number, y: number): string | undefined {
  return document.elementsFromPoint(x, y).map((one) => one.closest<HTMLElement>(".react-flow__edge")?.dataset["id"]).find(Boolean);
}

/** Copy React Flow's selection changes into the store. */
function recordSelection(changes: NodeChange[]): void {
  const open = doc();
  const chosen = changes.filter((c) => c.type === "select");
  if (!open || !chosen.length) return;
  const blocks = new Set(open.blocks);
  const notes = new Set(open.notes);
  for (const c of chosen) {
    const k = noteNumber(c.id);
    if (k === null) c.selected ? blocks.add(c.id) : blocks.delete(c.id);
    else c.selected ? notes.add(k) : notes.delete(k);
  }
  changeDoc(open.name, { blocks, notes });
}
