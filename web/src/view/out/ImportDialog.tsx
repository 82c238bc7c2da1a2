import type { Page } from "../../transport/protocol";

export function ImportDialog(props: { name: string; report: { level: string; place: string; message: string }[]; page: Page }) {
  void [props];
  return null;
}
