export function ValueDialog({ block, pin }: { block: string; pin: string }) {
  void [block, pin];
  return null;
}
