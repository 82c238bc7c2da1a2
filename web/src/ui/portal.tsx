// Where menus, dialogs and tooltips are mounted: inside the studio's element, which has the styles and the theme. In a
// notebook there may be several such elements on one page.

import { createContext, useContext, useEffect, useState } from "react";

const PortalRoot = createContext<HTMLElement | null>(null);
export const PortalProvider = PortalRoot.Provider;

export function usePortalRoot(): HTMLElement | undefined {
  return useContext(PortalRoot) ?? undefined;
}

/** For what closes: gives the focus back to the element that had it before this was shown, unless another took it. It
 *  does so before the next key arrives; the handler is for the later attempt of Radix to do the same. */
export function useReturnFocus(): (event: Event) => void {
  const [before] = useState(() => document.activeElement);
  const restore = () => {
    const now = document.activeElement;
    if ((now === null || now === document.body) && before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
  };
  useEffect(() => () => queueMicrotask(restore), []); // eslint-disable-line
  return (event) => {
    event.preventDefault();
    restore();
  };
}
