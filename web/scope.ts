// Studio's style sheet in a notebook: every rule applies inside of Studio only, and beats the rules of the notebook.

interface Rule {
  type: string;
  selectors: string[];
  parent?: { type: string; name?: string };
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

/** A PostCSS plugin that restricts all rules. Nested rules follow the rule around them; keyframes have no selectors. */
export function scopeToStudio() {
  return {
    postcssPlugin: "scope-to-studio",
    Rule(rule: Rule) {
      if (rule.parent?.type === "rule" || rule.parent?.name?.endsWith("keyframes")) return;
      const scoped = rule.selectors.map(scopedSelector);
      if (scoped.some((one, k) => one !== rule.selectors[k])) rule.selectors = scoped;
    },
  };
}
