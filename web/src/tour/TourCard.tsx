// The tour: a card with the current step, and a ring around what it is about. Steps advance when the page shows that
// they are done, whoever did them.

import { useEffect, useState } from "react";
import { doc, get, set, useDoc, useStudio } from "../app/store";
import type { Step } from "./tour";
import { isDone, perform, targetOf, tourBlock } from "./tour";

export function TourCard() {
  const at = useStudio((state) => state.tour);
  const tour = useStudio((state) => state.hello?.tour);
  const open = useDoc();
  const [busy, setBusy] = useState(false);
  const step = at === null || !tour ? undefined : tour.steps[at];
  useEffect(() => {
    if (at !== null && step && isDone(step, open)) set({ tour: at + 1 });
  }, [at, step, open]);
  if (!FEATURES.tour || at === null || !tour || !step) return null;
  const last = at === tour.steps.length - 1;
  const doIt = async () => {
    setBusy(true);
    await perform(step, tour.op);
    setBusy(false);
  };
  return (
    <>
      <Ring step={step} />
      <section className="tour" aria-label="Tour">
        <p className="tour-count">Step {at + 1} of {tour.steps.length}</p>
        <div aria-live="polite">
          <h2>{step.title}</h2>
          <p>{step.text}</p>
          {Object.entries(step.values ?? {}).map(([pin, text]) => <p key={pin} className="tour-value">{pin} <code>{text}</code></p>)}
        </div>
        <footer>
          {last ? (
            <>
              <button onClick={() => void doIt()} disabled={busy}>Open Trace</button>
              <button className="primary" onClick={() => set({ tour: null })}>Finish</button>
            </>
          ) : (
            <>
              <button onClick={() => set({ tour: null })}>Leave the tour</button>
              <button className="primary" disabled={busy} onClick={() => void doIt()}>Do it for me</button>
            </>
          )}
        </footer>
      </section>
    </>
  );
}

/** Follows its target, which moves with the canvas. */
function Ring({ step }: { step: Step }) {
  const [box, setBox] = useState<DOMRect | null>(null);
  useEffect(() => {
    let frame = 0;
    const follow = () => {
      const selector = targetOf(step, doc());
      const found = (selector && !get().dialog && document.querySelector(selector)?.getBoundingClientRect()) || null;
      setBox((before) => (before && found && before.x === found.x && before.y === found.y && before.width === found.width && before.height === found.height ? before : found));
      frame = requestAnimationFrame(follow);
    };
    follow();
    return () => cancelAnimationFrame(frame);
  }, [step]);
  if (!box || (step.kind !== "place" && !tourBlock(doc()))) return null;
  return <div className="tour-ring" aria-hidden="true" style={{ left: box.x - 5, top: box.y - 5, width: box.width + 10, height: box.height + 10 }} />;
}
