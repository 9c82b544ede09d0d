// A fake WebSocket for tests of websocket.js in node, whose connection can be lost and restored. It answers the
// handshake.
//
//   fakeConnection()   {requests: [{method, params}] in the order in which they were sent, answer(method, fn): how
//                      `method` is answered (fn(params) -> [ok, payload | error], or null for no answer),
//                      tell(event, payload): sends an event, open(): lets the page connect, lose(): breaks the
//                      connection, leave(): restores the real WebSocket}

import * as websocket from "../js/websocket.js";

const REAL = { WebSocket: globalThis.WebSocket };

export function fakeConnection() {
  const requests = [];
  const answers = new Map();
  let open = null;
  let refused = false;

  class Socket {
    constructor() {
      open = this;
      queueMicrotask(() =>
        refused ? this.fail() : this.tell({ type: "event", event: "connect.challenge" }),
      );
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
  websocket.start("0");
  const is = (state) =>
    new Promise((resolve) => {
      const forget = websocket.onState((now) => {
        if (now === state) {
          forget();
          resolve();
        }
      });
      if (websocket.state() === state) {
        forget();
        resolve();
      }
    });
  return {
    requests,
    answer: (method, fn) => answers.set(method, fn),
    tell: (event, payload) => open.tell({ type: "event", event, payload }),
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
      websocket.close();
      globalThis.WebSocket = REAL.WebSocket;
    },
  };
}
