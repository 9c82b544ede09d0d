// Uses Quell's Messages API with Anthropic's own client, and prints one JSON object a line about what it saw.
// Arguments: the task, the address, the key, and the model.
import { createRequire } from "node:module";

// The packages are installed elsewhere.
const Anthropic = createRequire(`${process.env.CLIENT_PACKAGES}/`)("@anthropic-ai/sdk");

const [task, baseURL, authToken, model] = process.argv.slice(2);
const png = "iVBORw0KGgo=";
const tools = [{ name: "look", description: "Looks.", input_schema: { type: "object", properties: {} } }];
const question = [{ role: "user", content: "what is there?" }];
const client = new Anthropic({ baseURL, authToken, maxRetries: 0 });
const say = (seen) => console.log(JSON.stringify(seen));
const request = (messages, more = {}) => ({ model, max_tokens: 4000, messages, ...more });
const usageOf = ({ usage }) => [usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens];
const lastText = (message) => message.content.at(-1).text;

async function exchange() {
  let message = await client.messages.create(request(question, { system: "Be brief." }));
  say({ text: lastText(message), stop: message.stop_reason, usage: usageOf(message), model: message.model });
  const stops = model.includes("anthropic") ? ["END"] : [];
  const stream = client.messages.stream(request(question, { stop_sequences: stops }));
  let text = "";
  stream.on("text", (piece) => (text += piece));
  message = await stream.finalMessage();
  say({ text, stop: message.stop_reason, sequence: message.stop_sequence, usage: usageOf(message) });
}

async function useTools() {
  let message = await client.messages.stream(request(question, { tools })).finalMessage();
  const calls = message.content.filter((block) => block.type === "tool_use");
  say({
    kinds: message.content.map((block) => block.type),
    stop: message.stop_reason,
    calls: calls.map((call) => [call.name, call.input]),
  });
  const results = calls.map((call, at) => ({ type: "tool_result", tool_use_id: call.id, content: `a file ${at}` }));
  const answers = [{ role: "assistant", content: message.content }, { role: "user", content: results }];
  message = await client.messages.create(request([...question, ...answers], { tools }));
  say({ text: lastText(message), stop: message.stop_reason });
}

async function images() {
  const image = { type: "image", source: { type: "base64", media_type: "image/png", data: png } };
  const content = [image, { type: "text", text: "what is in it?" }];
  say({ text: lastText(await client.messages.create(request([{ role: "user", content }]))) });
}

async function clientStop() {
  const stream = client.messages.stream(request(question));
  const { response } = await stream.withResponse();
  say({ run: response.headers.get("x-quell-run") });
  try {
    for await (const event of stream) {
      if (event.type === "content_block_delta") {
        say({ text: event.delta.text });
        stream.abort();
      }
    }
  } catch (error) {
    if (!(error instanceof Anthropic.APIUserAbortError)) throw error;
  }
  say({ text: lastText(await client.messages.create(request(question))) });
}

async function readToEnd() {
  let text = "";
  try {
    const { data, response } = await client.messages.create(request(question, { stream: true })).withResponse();
    say({ run: response.headers.get("x-quell-run") });
    for await (const event of data) {
      if (event.type === "content_block_delta") {
        text += event.delta.text;
        say({ piece: event.delta.text });
      }
    }
    say({ text, error: null });
  } catch (error) {
    say({ text, error: error.constructor.name, body: error.error });
  }
}

async function lost() {
  const { data, response } = await client.messages.create(request(question, { stream: true })).withResponse();
  say({ run: response.headers.get("x-quell-run") });
  for await (const event of data) {
    if (event.type === "content_block_delta") {
      say({ text: event.delta.text });
      process.exit(0);
    }
  }
}

async function refused() {
  const good = { model, max_tokens: 10, messages: question };
  const document = [{ type: "document", source: { type: "text", media_type: "text/plain", data: "x" } }];
  const bad = [
    { model: "nobody/x" },
    { model: "agent/nobody" },
    { messages: [] },
    { messages: [{ role: "user", content: document }] },
    { top_k: 3 },
    { colour: "red" },
    { max_tokens: "many" },
  ];
  for (const more of bad) say(await refusal(() => client.messages.create({ ...good, ...more })));
  const other = new Anthropic({ baseURL, authToken: "wrong", maxRetries: 0 });
  say(await refusal(() => other.messages.create(good)));
  say(await refusal(() => client.models.retrieve("nobody/x")));
}

async function refusal(call) {
  try {
    await call();
    return { class: null };
  } catch (error) {
    const { type, message } = error.error.error;
    return { class: error.constructor.name, status: error.status, type, message };
  }
}

async function count() {
  say({ tokens: (await client.messages.countTokens({ model, messages: question, tools })).input_tokens });
  const models = [];
  for await (const listed of client.models.list({ limit: 1 })) models.push(listed.id);
  say({ models });
  say({ model: (await client.models.retrieve(model)).id });
}

const tasks = {
  exchange, tools: useTools, images, client_stop: clientStop, read_to_end: readToEnd, lost, refused, count,
};
await tasks[task]();
