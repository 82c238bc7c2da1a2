// The canvas: blocks, wires and notes of the active page. React Flow draws and drags; the page in the store is the truth.

import type { Connection, Edge, EdgeChange, FinalConnectionState, Node, NodeChange, OnConnectStartParams } from "@xyflow/react";
import {
  Background,
  BackgroundVariant,
  MiniMap,
  ReactFlow,
  SelectionMode,
  applyNodeChanges,
  getViewportForBounds,
  useNodesInitialized,
  useReactFlow,
  useStore,
} from "@xyflow/react";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { changeDoc, doc, get, set, useDoc, useStudio } from "../app/store";
import { BlockNode } from "../blocks/BlockNode";
import { canvasView, perform } from "../commands/commands";
import { NoteNode } from "../notes/Note";
import { connectWire, fetchCandidates, place, reportRejection, select, viewport } from "../page/actions";
import { endText } from "../page/page";
import { DistantWires } from "../wires/DistantWires";
import { WireEdge } from "../wires/WireEdge";
import type { Size } from "./layout";
import { GRID, boundsOf, rendered } from "./layout";
import { recordMoves, withFrameContents } from "./moves";
import { edgesOf, endOfHandle, nodesOf, noteNumber } from "./nodes";

export const OP_MIME_TYPE = "application/x-rowgrad-op";
const NODE_TYPES = { block: BlockNode, note: NoteNode };
const EDGE_TYPES = { wire: WireEdge };
const MANY = 150; // with more blocks than this, only visible ones are rendered
const FAR = 0.45; // zoom below which text is unreadable

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
    rendered.sizes = () => {
      const sizes = new Map<string, Size>();
      for (const { id, measured } of flow.getNodes()) if (measured?.width && measured.height) sizes.set(id, { width: measured.width, height: measured.height });
      return sizes;
    };
    // On an empty page, fitView would wait for the first block and then jump.
    canvasView.fit = () => void (flow.getNodes().length && flow.fitView({ padding: 0.15, maxZoom: 1 }));
    canvasView.zoom = (by) => void flow.zoomTo(flow.getZoom() * by);
    canvasView.actual = () => void flow.zoomTo(1);
  }, [flow]);

  // A page that becomes active is fully visible from its first frame on.
  const showWhole = useCallback(() => {
    const box = document.querySelector(".canvas")?.getBoundingClientRect();
    const shown = doc();
    if (!box || !shown) return;
    void flow.setViewport(getViewportForBounds(boundsOf(shown.page, get().catalog), box.width, box.height, 0.05, 1, 0.15));
  }, [flow]);
  useLayoutEffect(showWhole, [name, showWhole]);
  // The blocks' true sizes are known once they are rendered.
  const measured = useNodesInitialized();
  const fitted = useRef<string | null>(null);
  useEffect(() => {
    // A page that starts empty does not move when its first block is placed.
    if (fitted.current === name || (!measured && doc()?.page.blocks.length)) return;
    fitted.current = name;
    if (measured) canvasView.fit();
  }, [measured, name]);

  useEffect(() => {
    const show = (event: Event) => {
      const { id } = (event as CustomEvent<{ id: string }>).detail;
      void flow.fitView({ nodes: [{ id }], padding: 0.4, maxZoom: Math.max(1, flow.getZoom()), duration: 200 });
    };
    window.addEventListener("rowgrad:show", show);
    return () => window.removeEventListener("rowgrad:show", show);
  }, [flow]);

  const onNodesChange = useCallback((changes: NodeChange[]) => {
    const all = withFrameContents(changes);
    setNodes((before) => applyNodeChanges(all, before));
    recordSelection(all);
    recordMoves(all);
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

  const onConnectEnd = useCallback((_: unknown, state: FinalConnectionState) => {
    const { drag } = get();
    set({ drag: null });
    if (state.isValid || !state.toHandle?.id || !drag?.takes) return;
    const other = endOfHandle(state.toHandle.nodeId, state.toHandle.id);
    const reason = drag.takes[endText(other)];
    const target = drag.side === "from" ? other : drag.end;
    const from = drag.side === "from" ? drag.end : other;
    if (reason && FEATURES.rejections) void reportRejection(from, target.block, target.pin, reason);
  }, []);

  const onDrop = useCallback(
    (event: React.DragEvent) => {
      const op = event.dataTransfer.getData(OP_MIME_TYPE);
      if (!op) return;
      event.preventDefault();
      event.stopPropagation();
      const at = flow.screenToFlowPosition({ x: event.clientX, y: event.clientY });
      place(op, [at.x - 60, at.y - 16]);
    },
    [flow],
  );

  if (!open) return null;
  return (
    <div className={`canvas${far ? " far" : ""}${light ? " light" : ""}`} onDrop={onDrop} onDragOver={allowDrop} data-testid="canvas">
      <ReactFlow
        nodes={nodes}
        edges={edges}
        nodeTypes={NODE_TYPES}
        edgeTypes={EDGE_TYPES}
        onInit={showWhole}
        onNodesChange={onNodesChange}
        onEdgesChange={onEdgesChange}
        onConnectStart={onConnectStart}
        onConnect={onConnect}
        onConnectEnd={onConnectEnd}
        isValidConnection={isValid}
        onPaneClick={() => select([])}
        onNodeDoubleClick={() => perform("edit-block")}
        snapToGrid={snapping && FEATURES.gridSnap}
        snapGrid={[GRID, GRID]}
        selectionMode={SelectionMode.Partial}
        selectionOnDrag={FEATURES.multiSelect}
        selectionKeyCode={FEATURES.multiSelect ? "Shift" : null}
        multiSelectionKeyCode={FEATURES.multiSelect ? ["Shift", "Meta", "Control"] : null}
        panOnDrag={FEATURES.multiSelect ? [1, 2] : true}
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
        {minimap && FEATURES.minimap && <MiniMap pannable zoomable ariaLabel="Minimap" nodeClassName={miniClass} />}
      </ReactFlow>
    </div>
  );
}

function allowDrop(event: React.DragEvent): void {
  if (event.dataTransfer.types.includes(OP_MIME_TYPE)) event.preventDefault();
}

function miniClass(node: Node): string {
  return node.type === "note" ? "mini-note" : "mini-block";
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
