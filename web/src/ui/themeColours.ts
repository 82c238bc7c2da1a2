// Design tokens for canvas elements, which understand no `light-dark()`: the browser resolves it in a computed colour.

/** The tokens as colours of the theme that an element is shown in. */
export function themeColours<Name extends string>(element: Element, names: readonly Name[]): Record<Name, string> {
  const host = element.parentElement ?? element; // what is inside of a canvas element is not shown
  const probe = document.createElement("span");
  probe.hidden = true;
  host.append(probe);
  const found = names.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color] as const;
  });
  probe.remove();
  return Object.fromEntries(found) as Record<Name, string>;
}
