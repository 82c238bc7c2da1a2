// The mark of rowgrad: rows of a table, of which some have gradients.

const ROWS = [0.35, 1, 0.35, 0.75]; // how strongly a row is drawn

export function BrandMark({ size = 20 }: { size?: number }) {
  return (
    <svg className="brand-mark" width={size} height={size} viewBox="0 0 20 20" aria-hidden="true">
      <defs>
        <linearGradient id="brand-fill" x1="0" x2="1">
          <stop offset="0" stopColor="var(--brand-from)" />
          <stop offset="1" stopColor="var(--brand-to)" />
        </linearGradient>
      </defs>
      {ROWS.map((strength, k) => <rect key={k} x="1.5" y={1.5 + k * 4.5} width="17" height="3.4" rx="1.2" fill={strength < 0.5 ? "var(--quiet)" : "url(#brand-fill)"} opacity={strength} />)}
    </svg>
  );
}
