// The steps of the page's history; a click goes to any of them.

import { useDoc } from "../app/store";
import { goToStep } from "../page/actions";

export function HistoryPanel() {
  const history = useDoc()?.history;
  if (!history) return null;
  const last = history.steps.length - 1;
  return (
    <ol className="history" reversed>
      {[...history.steps].reverse().map((step, i) => {
        const k = last - i;
        return (
          <li key={k} className={k > history.now ? "undone" : ""}>
            <button className={k === history.now ? "now" : ""} aria-current={k === history.now ? "step" : undefined} onClick={() => goToStep(k)}>
              {step.label}
            </button>
          </li>
        );
      })}
    </ol>
  );
}
