// Limits how often a view is rendered. Exports throttleToFrame and throttleByCost.

const MAX_PAUSE_MS = 500;
/** The pause after a rendering, as a multiple of the time that it took. */
const PAUSE_FACTOR = 8;

/** Returns `{schedule, cancel}`: `schedule()` calls `render` once in the next animation frame. */
export function throttleToFrame(render) {
  let frameRequest = 0;
  return {
    schedule() {
      frameRequest ||= requestAnimationFrame(() => {
        frameRequest = 0;
        render();
      });
    },
    cancel() {
      cancelAnimationFrame(frameRequest);
      frameRequest = 0;
    },
  };
}

/**
 * Returns `update(value)`: it calls `render` with the newest value, at once or after a pause in proportion to
 * the time that the last rendering took. So the page stays responsive to a click on Stop.
 */
export function throttleByCost(render, now = () => performance.now(), setTimer = setTimeout) {
  let notBefore = 0;
  let pending = null;
  const run = (value) => {
    const startedAt = now();
    render(value);
    const endedAt = now();
    notBefore = endedAt + Math.min(MAX_PAUSE_MS, PAUSE_FACTOR * (endedAt - startedAt));
  };
  return (value) => {
    const wait = notBefore - now();
    if (pending) {
      pending.value = value;
    } else if (wait > 0) {
      pending = { value };
      setTimer(() => {
        const { value: newest } = pending;
        pending = null;
        run(newest);
      }, wait);
    } else {
      run(value);
    }
  };
}
