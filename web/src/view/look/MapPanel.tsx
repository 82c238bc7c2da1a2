export function MapPanel() {
  void [];
  return null;
}
