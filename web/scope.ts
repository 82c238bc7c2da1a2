// Studio's style sheet in a notebook: every rule applies inside of Studio only, and beats the rules of the notebook.

interface Container {
  type: string;
  name?: string;
  parent?: Container | undefined;
}
interface Rule extends Container {
  selectors: string[];
}

const INSIDE = ":where(.studio, .studio *)"; // without specificity, so that rules keep their order
const ABOVE = ":not(#\\9)"; // the specificity of an id, for all rules alike: notebooks style `button` by their classes

/** Restrict a selector to Studio. Rules for what is around it stay as they are. */
export function scopedSelector(selector: string): string {
  if (/^(html|body|#studio|\.rowgrad-widget)\b/.test(selector) || selector.includes(INSIDE)) return selector;
  // What follows a pseudo-element must be last.
  const [, before = selector, pseudo = ""] = /^(.*?)(::[\w-]+(?:\([^)]*\))?.*)?$/s.exec(selector) ?? [];
  return `${before || "*"}${INSIDE}${ABOVE}${pseudo}`;
}

/** Whether a rule is inside another one, directly or in its `@media`: it is restricted by that one. */
function isNested({ parent }: Container): boolean {
  return parent !== undefined && (parent.type === "rule" || isNested(parent));
}

/** A PostCSS plugin that restricts all rules. Nested rules follow the rule around them; keyframes have no selectors. */
export function scopeToStudio() {
  return {
    postcssPlugin: "scope-to-studio",
    Rule(rule: Rule) {
      if (isNested(rule) || rule.parent?.name?.endsWith("keyframes")) return;
      const scoped = rule.selectors.map(scopedSelector);
      if (scoped.some((one, k) => one !== rule.selectors[k])) rule.selectors = scoped;
    },
  };
}
