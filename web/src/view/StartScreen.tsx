export function StartScreen() {
  void [];
  return null;
}
