export function FlipDialog() {
  void [];
  return null;
}
