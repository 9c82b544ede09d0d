// The official JavaScript client of A2A against Quell: every step is printed as a line of JSON. The environment is that
// of client.py.

import { randomUUID } from 'node:crypto';
import { Role, TaskState } from '@a2a-js/sdk';
import {
  ClientFactory,
  ClientFactoryOptions,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from '@a2a-js/sdk/client';

const env = process.env;
const show = (step, facts) => console.log(JSON.stringify({ step, ...facts }));

async function ask(method, path) {
  const headers = { Authorization: `Bearer ${env.QUELL_TEST_ADMIN}`, 'Content-Type': 'application/json' };
  const response = await fetch(env.QUELL_TEST_API + path, { method, headers, body: method === 'POST' ? '{}' : undefined });
  return response.json();
}

async function connect(token, agent = '') {
  const fetchImpl = (url, init = {}) => {
    const headers = new Headers(init.headers);
    headers.set('Authorization', `Bearer ${env[token]}`);
    return fetch(url, { ...init, headers });
  };
  const options = ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
    transports: [new JsonRpcTransportFactory({ fetchImpl }), new RestTransportFactory({ fetchImpl })],
    preferredTransports: [env.QUELL_TEST_BINDING],
    cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
  });
  return new ClientFactory(options).createFromUrl(`${env.QUELL_TEST_A2A}${agent}/.well-known/agent-card.json`, '');
}

function message(text, fields = {}) {
  const part = { content: { $case: 'text', value: text }, metadata: undefined, filename: '', mediaType: '' };
  return {
    tenant: '',
    message: { messageId: randomUUID(), contextId: '', taskId: '', role: Role.ROLE_USER, parts: [part], metadata: undefined, extensions: [], referenceTaskIds: [], ...fields },
    configuration: undefined,
    metadata: undefined,
  };
}

const stateName = (status) => TaskState[status.state];
const textOf = (artifact) => artifact.parts[0].content.value;
const list = (fields) => ({ tenant: '', contextId: '', status: TaskState.TASK_STATE_UNSPECIFIED, pageToken: '', ...fields });

function add(seen, kind, value) {
  seen.first ??= kind;
  if (kind === 'task') {
    Object.assign(seen, { task: value.id, context: value.contextId, status: value.status });
    seen.states.push(stateName(value.status));
    for (const artifact of value.artifacts) seen.answer = textOf(artifact);
  } else if (kind === 'statusUpdate') {
    seen.status = value.status;
    seen.states.push(stateName(value.status));
  } else if (kind === 'artifactUpdate') {
    seen.answer = value.append ? seen.answer + textOf(value.artifact) : textOf(value.artifact);
  }
  return seen;
}

const nothingSeen = () => ({ first: undefined, states: [], answer: '', task: undefined });

async function collect(events, onEvent = async () => {}, seen = nothingSeen()) {
  for await (const event of events) {
    const { $case: kind, value } = event.payload;
    add(seen, kind, value);
    await onEvent(kind, seen);
  }
  return seen;
}

/** The task that a message without a stream was answered by. */
async function send(quell, request) {
  const answer = await quell.sendMessage(request);
  return add(nothingSeen(), 'task', answer.payload?.value ?? answer);
}

async function problemOf(attempt) {
  try {
    await attempt();
    return 'nothing was refused';
  } catch (error) {
    return error.name;
  }
}

const quell = await connect('QUELL_TEST_WRITER');
const get = (id) => quell.getTask({ tenant: '', id });
const card = await quell.getAgentCard();
show('card', { name: card.name, bindings: card.supportedInterfaces.map((item) => item.protocolBinding) });

const normal = await collect(quell.sendMessageStream(message('normal')));
show('normal', { first: normal.first, states: normal.states, answer: normal.answer });
const found = await get(normal.task);
show('get', { state: stateName(found.status), answer: textOf(found.artifacts[0]), history: found.history[0].parts[0].content.value });
const again = await send(quell, message('again', { contextId: found.contextId }));
show('blocking', { state: again.states[0], answer: again.answer, same_context: again.context === found.contextId });
const ids = [];
let [token, pages, total] = ['', 0, 0];
do {
  const page = await quell.listTasks(list({ contextId: found.contextId, pageSize: 1, pageToken: token }));
  ids.push(...page.tasks.map((task) => task.id));
  [token, pages, total] = [page.nextPageToken, pages + 1, page.totalSize];
} while (token);
show('list', { pages, newest_first: ids.join() === [again.task, normal.task].join(), total });

const cancelled = [];
const own = await collect(quell.sendMessageStream(message('own stop')), async (kind, seen) => {
  if (kind === 'artifactUpdate' && !cancelled.length) cancelled.push(stateName((await quell.cancelTask({ tenant: '', id: seen.task })).status));
});
const errors = [];
for (const id of [own.task, 'unknown']) errors.push(await problemOf(() => quell.cancelTask({ tenant: '', id })));
const text = own.status.message.parts[0].content.value;
show('own stop', { cancelled, states: own.states, errors, message: text, run: await ask('GET', `/api/runs/${own.task}`) });
const after = await send(quell, message('go on', { contextId: own.context }));
show('after the stop', { state: after.states[0], answer: after.answer });

const other = await collect(quell.sendMessageStream(message('other stop')), async (kind, seen) => {
  if (kind === 'artifactUpdate') await ask('POST', `/api/runs/${seen.task}/stop?wait=1`);
});
show('other stop', { states: other.states, run: await ask('GET', `/api/runs/${other.task}`) });

const before = nothingSeen();
const announce = async (kind) => {
  if (kind === 'artifactUpdate') show('streaming');
};
const problem = await problemOf(() => collect(quell.sendMessageStream(message('lost')), announce, before));
let isOpened = false;
const resumed = await collect(quell.resubscribeTask({ tenant: '', id: before.task }), async (kind) => {
  if (kind === 'artifactUpdate' && !isOpened) show('resubscribed');
  isOpened ||= kind === 'artifactUpdate';
});
const stored = textOf((await get(before.task)).artifacts[0]);
show('lost', { problem, first: resumed.first, states: resumed.states, answer: resumed.answer, stored });

const writer = await connect('QUELL_TEST_WRITER', '/a2a/asking');
const approver = await connect('QUELL_TEST_APPROVER', '/a2a/asking');
const asked = await collect(writer.sendMessageStream(message('list the files')));
const question = asked.status.message.parts[1].content.value;
const answered = await collect(approver.sendMessageStream(message('allow', { taskId: asked.task })));
show('approval', { asked: asked.states, tool: question.tool, states: answered.states, answer: answered.answer });

const receiver = { tenant: '', id: '', taskId: '', url: env.QUELL_TEST_RECEIVER, token: 'mark', authentication: { scheme: 'Bearer', credentials: 'hush' } };
const withPush = message('push');
withPush.configuration = { acceptedOutputModes: [], taskPushNotificationConfig: receiver, historyLength: undefined, returnImmediately: false };
const pushed = (await send(quell, withPush)).task;
const two = { tenant: '', taskId: pushed, id: 'two' };
await quell.createTaskPushNotificationConfig({ ...receiver, ...two });
const ofTask = { tenant: '', taskId: pushed, pageSize: 0, pageToken: '' };
const listed = await quell.listTaskPushNotificationConfig(ofTask);
const { url } = await quell.getTaskPushNotificationConfig(two);
await quell.deleteTaskPushNotificationConfig(two);
const left = await quell.listTaskPushNotificationConfig(ofTask);
show('push', { task: pushed, configs: listed.configs.length, url, left: left.configs.length });

const old = (await quell.listTasks(list({ pageSize: 1 }))).tasks[0].id;
const stranger = await connect('QUELL_TEST_STRANGER');
const file = message('x');
file.message.parts[0].content = { $case: 'url', value: 'https://x.example' };
const bad = [
  () => collect(quell.sendMessageStream(message('x', { taskId: 'unknown' }))),
  () => collect(quell.sendMessageStream(file)),
  () => stranger.getTask({ tenant: '', id: old }),
  () => stranger.cancelTask({ tenant: '', id: old }),
  () => collect(quell.resubscribeTask({ tenant: '', id: old })),
];
const refused = [];
for (const attempt of bad) refused.push(await problemOf(attempt));
show('bad input', { errors: refused });
show('huge body', { problem: await problemOf(() => collect(quell.sendMessageStream(message('x'.repeat(30_000_000))))) });
show('unknown agent', { problem: await problemOf(() => connect('QUELL_TEST_WRITER', '/a2a/nobody')) });
const reader = await connect('QUELL_TEST_READER');
show('no right', { problem: await problemOf(() => reader.sendMessage(message('not allowed'))) });
