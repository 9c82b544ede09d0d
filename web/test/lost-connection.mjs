// A connection that tests lose and get back: stands in for the browser's WebSocket, so that live.js works in
// node. It knows the frames of the handshake alone.
//
//   connection()   {requests: [{method, params}] in the order in which they were sent, answer(method, fn):
//                  how `method` is answered (fn(params) -> [ok, payload | error], or null for silence),
//                  open(): lets the page connect, lose(): breaks it, leave(): forgets all of this}

import * as live from "../js/live.js";

const REAL = { WebSocket: globalThis.WebSocket };

export function connection() {
  const requests = [];
  const answers = new Map();
  let open = null;
  let refused = false;

  class Socket {
    constructor() {
      open = this;
      queueMicrotask(() => (refused ? this.fail() : this.tell({ type: "event", event: "connect.challenge" })));
    }

    send(text) {
      const { id, method, params } = JSON.parse(text);
      requests.push({ method, params });
      const given = (answers.get(method) ?? (() => [true, {}]))(params);
      if (given !== null) {
        const [ok, body] = given;
        queueMicrotask(() =>
          this.tell({ type: "res", id, ok, ...(ok ? { payload: body } : { error: body }) }),
        );
      }
    }

    tell(frame) {
      this.onmessage?.({ data: JSON.stringify(frame) });
    }

    fail() {
      this.onclose?.();
    }

    close() {}
  }

  const nobody = { addEventListener() {}, removeEventListener() {}, hidden: false };
  Object.assign(globalThis, {
    WebSocket: Socket,
    window: nobody,
    document: nobody,
    location: { protocol: "http:", host: "quell.test" },
  });
  live.start("0");
  const is = (state) =>
    new Promise((resolve) => {
      const forget = live.onState((now) => {
        if (now === state) {
          forget();
          resolve();
        }
      });
      if (live.state() === state) {
        forget();
        resolve();
      }
    });
  return {
    requests,
    answer: (method, fn) => answers.set(method, fn),
    open: () => {
      refused = false;
      return is("live");
    },
    lose: () => {
      refused = true;
      open.fail();
      return is("lost");
    },
    leave: () => {
      live.close();
      globalThis.WebSocket = REAL.WebSocket;
    },
  };
}
