// The run bar: how to run the active page, how fast, on which engine, and its progress.

import { Camera, Images, Pause, Play, Repeat, RotateCcw, Square, StepForward, Timer, Sigma } from "lucide-react";
import { get, set, useDoc, useStudio } from "../app/store";
import { CommandButton } from "../commands/CommandButton";
import { isFailureEdited, restore } from "./runs";
import type { RunState } from "../transport/protocol";
import { secondsText } from "../values/format";

export function RunBar() {
  const open = useDoc();
  const mode = useStudio((state) => state.runMode);
  const engines = useStudio((state) => state.hello?.engines ?? []);
  if (!open) return null;
  const change = (part: Partial<typeof mode>) => set({ runMode: { ...get().runMode, ...part } });
  return (
    <section className="run-bar" aria-label="Run">
      <CommandButton id="run" icon={Play} text="Run" className="primary" />
      <span className="run-group">
        <CommandButton id="run-steps" icon={StepForward} text="Run N steps" />
        {FEATURES.steps && <NumberField label="Steps to run" value={mode.steps} least={1} most={1e9} whole onChange={(steps) => change({ steps })} />}
      </span>
      <span className="run-group">
        <CommandButton id="run-rate" icon={Timer} text="Run every" />
        {FEATURES.rate && <NumberField label="Runs per second" value={mode.rate} least={0.001} most={10000} onChange={(rate) => change({ rate })} unit="Hz" />}
      </span>
      <CommandButton id="run-flat" icon={Repeat} text="Run continuously" />
      <span className="gap" />
      <CommandButton id="pause" className="compact" icon={Pause} text="Pause" />
      <CommandButton id="resume" className="compact" icon={StepForward} text="Resume" />
      <CommandButton id="stop" className="compact" icon={Square} text="Stop" />
      <CommandButton id="reset" className="compact" icon={RotateCcw} text="Reset" />
      <CommandButton id="snapshot" icon={Camera} />
      <CommandButton id="snapshots" icon={Images} />
      <CommandButton id="flip" icon={Sigma} text="Flip to gradient" />
      {FEATURES.engines && (
        <label className="engine">
          <span className="engine-word">Engine </span>
          <select value={mode.engine} onChange={(event) => change({ engine: event.target.value })}>
            {engines.map((engine) => (
              <option key={engine.name} value={engine.name} disabled={!engine.available} title={engine.why ?? ""}>
                {engine.name} {engine.version ?? ""}{engine.available ? "" : " (not installed)"}
              </option>
            ))}
          </select>
        </label>
      )}
      <Progress run={open.run} isEdited={isFailureEdited(open)} />
    </section>
  );
}

function NumberField(props: { label: string; value: number; least: number; most: number; whole?: boolean; unit?: string; onChange: (value: number) => void }) {
  const { label, value, least, most, whole = false, unit, onChange } = props;
  return (
    <label className="number">
      <input
        type="number"
        aria-label={label}
        title={label}
        defaultValue={value}
        min={least}
        max={most}
        step={whole ? 1 : "any"}
        onChange={(event) => {
          const typed = event.target.valueAsNumber;
          if (Number.isFinite(typed) && typed >= least && typed <= most && (!whole || Number.isInteger(typed))) onChange(typed);
        }}
      />
      {unit}
    </label>
  );
}

const PHASE_TEXT: Record<RunState["phase"], string> = {
  idle: "not run yet",
  running: "running",
  paused: "paused",
  done: "done",
  stopped: "stopped",
  failed: "failed",
};

function Progress({ run, isEdited }: { run: RunState | null; isEdited: boolean }) {
  if (!run) return null;
  const running = run.phase === "running";
  const speed = running && run.per_second ? `${run.per_second < 100 ? run.per_second.toFixed(1) : Math.round(run.per_second)} / s` : "";
  // `run` counts all runs of the page; `done` and `steps` those of the current start.
  const under = running || (run.phase === "paused" && run.done < (run.steps ?? 0));
  const counted = under && run.steps && run.steps > 1 ? `step ${run.done} of ${run.steps}` : `run ${run.run}`;
  const phase = `${PHASE_TEXT[run.phase]}${run.phase === "stopped" && run.message ? `: ${run.message}` : ""}`;
  const parts = run.phase === "idle" ? [phase] : [phase, counted, speed, run.seconds && !speed ? `in ${secondsText(run.seconds)}` : ""];
  const text = isEdited ? "edited since the failed run" : parts.filter(Boolean).join(" · ");
  const why = run.phase === "failed" && !isEdited ? run.error?.message : null;
  return (
    <span className={`progress ${isEdited ? "edited" : run.phase}`} data-phase={run.phase} data-run={run.run} title={why ?? text}>
      {running && <progress {...(run.steps ? { value: Math.min(run.done, run.steps), max: run.steps } : {})} aria-label="Progress of the run" />}
      {/* During a run the numbers change many times a second: a screen reader must not announce them. */}
      <span role={running ? undefined : "status"}>{text}</span>
      {FEATURES.snapshots && run.saved && <button className="continue" title={`${run.saved.label}, ${new Date(run.saved.when * 1000).toLocaleString()}`} onClick={() => void restore(run.saved!.id)}>Continue from run {run.saved.run}</button>}
    </span>
  );
}
