// Names of ops where space is short: one that loses its middle, as they differ in beginnings and ends, and one that breaks
// between its words.

import { Fragment } from "react";

const END = 13; // letters that stay

export function MiddleText({ text }: { text: string }) {
  if (text.length <= END) return <span>{text}</span>;
  return (
    <span className="middle-text" title={text}>
      <span>{text.slice(0, -END)}</span>
      <span>{text.slice(-END)}</span>
    </span>
  );
}

export const WORDS = /(?<=[a-z0-9])(?=[A-Z])|(?<=_)/; // where a name may break

/** The name of an op, which may break before each of its words. */
export function OpName({ op }: { op: string }) {
  return op.split(WORDS).map((word, k) => <Fragment key={k}>{k > 0 && <wbr />}{word}</Fragment>);
}
