export function RenameDialog({ page }: { page: string }) {
  void [page];
  return null;
}
