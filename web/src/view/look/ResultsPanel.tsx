export function ResultsPanel() {
  void [];
  return null;
}
