// Drives `quell acp` with the official client, as clients::acp says on standard input, one JSON object a line. What the agent
// sends is printed in the same form. The first argument is the version of the protocol.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { Readable, Writable } from "node:stream";

const [version, program, ...args] = process.argv.slice(2);
const sdk = version === "2" ? "@agentclientprotocol/sdk/experimental/v2" : "@agentclientprotocol/sdk";
const { client, methods, ndJsonStream } = await import(sdk);
const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const agent = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
agent.on("exit", (code, signal) => say({ exit: code, signal }));
agent.stdin.on("error", () => {});

const permissions = new Map();
let permissionCount = 0;
const app = client({ name: "it-acp" })
  .onNotification(methods.client.session.update, (ctx) => say({ update: ctx.params.update, session: ctx.params.sessionId }))
  .onRequest(methods.client.session.requestPermission, (ctx) => {
    const permission = ++permissionCount;
    say({ permission, params: ctx.params });
    return new Promise((resolve) => {
      permissions.set(permission, resolve);
      ctx.signal.addEventListener("abort", () => {
        say({ withdrawn: permission });
        resolve({ outcome: { outcome: "cancelled" } });
      });
    });
  });
const stream = ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const connection = app.connect(stream);
const requests = new Map();

function request({ id, method, params }) {
  const abort = new AbortController();
  requests.set(id, abort);
  connection.agent.request(method, params, { cancellationSignal: abort.signal }).then(
    (result) => say({ answer: id, result }),
    (error) => say({ answer: id, error: { code: error.code, message: error.message, data: error.data } }),
  );
}

const actions = {
  request,
  notify: ({ method, params }) => connection.agent.notify(method, params),
  abort: ({ id }) => requests.get(id).abort(),
  permit: ({ permission, outcome }) => permissions.get(permission)({ outcome }),
  raw: ({ line }) => agent.stdin.write(line + "\n"),
  close: () => agent.stdin.end(),
  kill: () => agent.kill("SIGKILL"),
};
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  await actions[command.do](command);
}
agent.kill("SIGKILL");
process.exit(0);
