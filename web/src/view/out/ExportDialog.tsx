export function ExportDialog() {
  void [];
  return null;
}
