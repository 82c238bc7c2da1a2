export function SnapshotsDialog() {
  void [];
  return null;
}
