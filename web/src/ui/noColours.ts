// In place of the package d3-color, see vite.config.ts: no text is a colour.

export const color = (): null => null;
export const [rgb, hsl, lab, hcl, cubehelix] = [color, color, color, color, color];
