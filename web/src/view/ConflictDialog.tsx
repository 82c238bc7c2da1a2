export function ConflictDialog({ name, kept }: { name: string; kept: string }) {
  void [name, kept];
  return null;
}
