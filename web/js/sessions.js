// The list of sessions. Being written.
export function mount() {
  return () => {};
}
