// Work that is done at most once for each frame that the browser shows, however often it is asked for. It
// knows nothing else.

/** Gives `{ask, cancel}`: `ask()` has `draw` called with the next frame. */
export function framed(draw) {
  let asked = 0;
  return {
    ask() {
      asked ||= requestAnimationFrame(() => {
        asked = 0;
        draw();
      });
    },
    cancel() {
      cancelAnimationFrame(asked);
      asked = 0;
    },
  };
}
