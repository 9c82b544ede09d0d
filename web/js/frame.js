// How often work is done that is asked for often: once for each frame that the browser shows, or as often as
// the work itself allows. It knows nothing else.

const LONGEST_PAUSE_MS = 500;
/** Of nine parts of time, the work may have one. */
const PAUSE_PER_WORK = 8;

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

/**
 * Gives `ask(value)`: calls `draw` with the newest value, at once, or after a pause that grows with what the
 * last drawing took. Work that costs more the more there is of it leaves the page free for a click on Stop.
 */
export function paced(draw, now = () => performance.now(), later = setTimeout) {
  let notBefore = 0;
  let put = null;
  const work = (value) => {
    const began = now();
    draw(value);
    const ended = now();
    notBefore = ended + Math.min(LONGEST_PAUSE_MS, PAUSE_PER_WORK * (ended - began));
  };
  return (value) => {
    const wait = notBefore - now();
    if (put) {
      put.value = value;
    } else if (wait > 0) {
      put = { value };
      later(() => {
        const { value: newest } = put;
        put = null;
        work(newest);
      }, wait);
    } else {
      work(value);
    }
  };
}
