export function TrendPanel() {
  void [];
  return null;
}
