export function SparseDialog({ block }: { block: string }) {
  void [block];
  return null;
}
