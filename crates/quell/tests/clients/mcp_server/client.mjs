// The official JavaScript client of MCP against Quell: every step is printed as a line of JSON. The environment is that
// of client.py.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const env = process.env;
const isStdio = !env.QUELL_TEST_MCP.startsWith('http');
const mode = env.QUELL_TEST_MODE === 'legacy' ? 'legacy' : { pin: env.QUELL_TEST_MODE };

const show = (step, facts) => console.log(JSON.stringify({ step, ...facts }));
const pause = () => new Promise((resolve) => setTimeout(resolve, 20));

async function connect(token) {
  const client = new Client({ name: 'quell-test', version: '1' }, { versionNegotiation: { mode } });
  const transport = isStdio
    ? new StdioClientTransport({
        command: env.QUELL_TEST_MCP,
        args: ['mcp'],
        env: { QUELL_URL: env.QUELL_TEST_API, QUELL_TOKEN: env[token] },
      })
    : new StreamableHTTPClientTransport(new URL(env.QUELL_TEST_MCP), {
        requestInit: { headers: { Authorization: `Bearer ${env[token]}` } },
        reconnectionOptions: { initialReconnectionDelay: 50, maxReconnectionDelay: 500, reconnectionDelayGrowFactor: 1.5, maxRetries: 20 },
      });
  await client.connect(transport);
  return { client, transport };
}

async function ask(method, path) {
  const headers = { Authorization: `Bearer ${env.QUELL_TEST_ADMIN}`, 'Content-Type': 'application/json' };
  const response = await fetch(env.QUELL_TEST_API + path, { method, headers, body: method === 'POST' ? '{}' : undefined });
  return response.json();
}

async function activeRun(message) {
  for (;;) {
    const page = await ask('GET', '/api/runs?state=active');
    const run = page.items.find((item) => item.text === message && item.phase === 'waiting_llm');
    if (run) return run.runId;
    await pause();
  }
}

async function endedRun(run) {
  for (;;) {
    const view = await ask('GET', `/api/runs/${run}`);
    if (view.state === 'ended') return view;
    await pause();
  }
}

const { client, transport } = await connect('QUELL_TEST_WRITER');
const tools = await client.listTools();
show('hello', { version: client.getNegotiatedProtocolVersion(), tools: tools.tools.map((tool) => tool.name).sort() });

const progress = [];
const onprogress = (update) => progress.push([update.progress, update.message]);
const normal = await client.callTool({ name: 'run_agent', arguments: { message: 'normal' } }, { onprogress });
const run = normal.structuredContent;
show('normal', { text: normal.content[0].text, error: normal.isError, run, progress });

const receipt = await client.readResource({ uri: `quell://runs/${run.runId}/receipt` });
const history = await client.readResource({ uri: `quell://sessions/${encodeURIComponent(run.sessionKey)}/history` });
const listed = await client.listResources();
show('resources', {
  receipt: JSON.parse(receipt.contents[0].text).runId,
  history: JSON.parse(history.contents[0].text).items.length,
  listed: listed.resources.map((resource) => resource.uri),
});

const own = new AbortController();
const ownCall = client.callTool({ name: 'run_agent', arguments: { message: 'own stop' } }, { signal: own.signal });
const ownRun = await activeRun('own stop');
own.abort('enough');
try {
  await ownCall;
  show('own stop', { problem: 'the call was answered' });
} catch {
  show('own stop', { run: await endedRun(ownRun) });
}

const otherCall = client.callTool({ name: 'run_agent', arguments: { message: 'other stop' } });
const otherRun = await activeRun('other stop');
await ask('POST', `/api/runs/${otherRun}/stop?wait=1`);
const other = await otherCall;
show('other stop', { text: other.content[0].text, error: other.isError, run: other.structuredContent });

const codes = {};
for (const [name, args] of [['no_such_tool', {}], ['run_agent', {}], ['run_agent', { message: 7 }]]) {
  try {
    await client.callTool({ name, arguments: args });
  } catch (error) {
    (codes[name] ??= []).push(error.code);
  }
}
const unknown = await client.callTool({ name: 'run_agent', arguments: { message: 'x', agent: 'nobody' } });
show('bad input', { codes, unknown_agent: [unknown.isError, unknown.structuredContent.code] });
await transport.terminateSession?.().catch(() => {});
await client.close();

const reader = await connect('QUELL_TEST_READER');
try {
  await reader.client.callTool({ name: 'run_agent', arguments: { message: 'not allowed' } });
} catch (error) {
  show('no right', { code: error.code, data: error.data });
}
await reader.client.close();

const last = await connect('QUELL_TEST_WRITER');
const lostCall = last.client.callTool({ name: 'run_agent', arguments: { message: 'lost' } });
if (isStdio) {
  lostCall.catch(() => {});
  const lost = await activeRun('lost');
  await last.client.close();
  show('lost', { run: await endedRun(lost) });
} else {
  try {
    const result = await lostCall;
    show('lost', { text: result.content[0].text });
  } catch (error) {
    show('lost', { problem: error.constructor.name });
  }
  await last.client.close();
}

// A timer of the client would keep the program for a minute.
process.stdout.write('', () => process.exit(0));
