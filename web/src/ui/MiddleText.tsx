// A name that loses its middle where space is short: names of ops differ in their beginnings and their ends.

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
