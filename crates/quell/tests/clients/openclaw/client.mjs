// The unmodified gateway client, driven through connect, stream, abort, gap and reconnect. Each line on stdout is one JSON
// object that the test reads. Every hello and chat event is checked against the protocol's own published schema.

import { GatewayClient } from "@openclaw/gateway-client";
import { ChatEventSchema, HelloOkSchema } from "@openclaw/gateway-protocol";
import { Check, Errors } from "typebox/value";

const SESSION = "agent:main:npm";
const say = (step, more = {}) => console.log(JSON.stringify({ step, ...more }));

function check(what, schema, value) {
  if (!Check(schema, value)) {
    say("violation", { what, value, errors: [...Errors(schema, value)].slice(0, 5) });
  }
}

const ask = async (method, params) => {
  const answer = await client.request(method, params);
  say("answer", { method, answer });
  return answer;
};

let hellos = 0;
let aborting = false;

async function onHello(hello) {
  hellos += 1;
  check("hello-ok", HelloOkSchema, hello);
  say("hello", { number: hellos, protocol: hello.protocol, scopes: hello.auth.scopes });
  if (hellos === 1) {
    await ask("chat.send", { sessionKey: SESSION, message: "go on", idempotencyKey: "npm-1" });
  } else {
    await ask("chat.history", { sessionKey: SESSION, limit: 50 });
    await ask("chat.send", { sessionKey: SESSION, message: "and now", idempotencyKey: "npm-2" });
  }
}

async function onEvent({ event, payload }) {
  if (event === "chat") {
    check("chat", ChatEventSchema, payload);
    say("chat", { payload });
    if (payload.runId === "npm-1" && payload.state === "delta" && !aborting) {
      aborting = true;
      await ask("chat.abort", { sessionKey: SESSION, runId: "npm-1" });
    }
    if (payload.runId === "npm-2" && payload.state === "final") {
      await client.stopAndWait();
      say("done");
      process.exit(0);
    }
  }
  if (event === "run") {
    say("run", { runId: payload.runId, state: payload.state, leftovers: payload.receipt?.leftovers });
  }
}

const failed = (error) => {
  say("failed", { error: String(error) });
  process.exit(1);
};

const client = new GatewayClient({
  url: process.env.QUELL_TEST_URL,
  token: process.env.QUELL_TEST_TOKEN,
  deviceIdentity: null,
  minProtocol: 4,
  maxProtocol: 4,
  onHelloOk: (hello) => onHello(hello).catch(failed),
  onEvent: (event) => onEvent(event).catch(failed),
  onConnectError: failed,
  onClose: (code, reason) => say("close", { code, reason }),
  onGap: (gap) => say("gap", gap),
});

client.start();
