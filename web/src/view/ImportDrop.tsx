export function ImportDrop() {
  void [];
  return null;
}
