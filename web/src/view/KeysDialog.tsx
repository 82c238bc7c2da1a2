// Every command with its keys.

import { COMMANDS } from "../state/commands";
import { keysText } from "./CommandButton";
import { DialogFrame } from "./DialogFrame";

const BY_HAND: [string, string][] = [
  ["Tab, Shift+Tab", "from block to block and from field to field"],
  ["Arrows", "move the selected blocks"],
  ["Space + drag, middle button", "move the page"],
  ["Ctrl + wheel, pinch", "zoom"],
  ["Shift + click, drag on the page", "select several"],
  ["Ctrl+V", "paste blocks, also from JSON"],
];

export function KeysDialog() {
  const groups = [...new Set(COMMANDS.map((command) => command.group))];
  return (
    <DialogFrame title="Keys" wide>
      <div className="keys">
        {groups.map((group) => (
          <section key={group}>
            <h3>{group}</h3>
            <dl>
              {COMMANDS.filter((command) => command.group === group && command.keys).map((command) => (
                <div key={command.id}><dt><kbd>{keysText(command.keys)}</kbd></dt><dd>{command.title}</dd></div>
              ))}
            </dl>
          </section>
        ))}
        <section>
          <h3>By hand</h3>
          <dl>{BY_HAND.map(([keys, text]) => <div key={keys}><dt><kbd>{keys}</kbd></dt><dd>{text}</dd></div>)}</dl>
        </section>
      </div>
    </DialogFrame>
  );
}
