export function NoteDialog({ k }: { k: number }) {
  void [k];
  return null;
}
