export function TracePanel() {
  void [];
  return null;
}
