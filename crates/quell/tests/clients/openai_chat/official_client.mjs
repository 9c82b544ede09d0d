// Tasks for OpenAI's official client against Quell's chat completions. Prints what it has seen as JSON.
// Arguments: the task, the address of the daemon, the token.

import OpenAI from "openai";

const [task, address, token] = process.argv.slice(2);
const model = "scripted/model";
const messages = [{ role: "user", content: "How is the weather in Bern?" }];
const parameters = { type: "object", properties: { place: { type: "string" } } };
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: token, maxRetries: 2 });

async function stopRun(run) {
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const answer = await fetch(`${address}/api/runs/${run}/stop?wait=1`, { method: "POST", headers, body: "{}" });
  return answer.json();
}

/** Reads a stream up to its first text, and leaves it open, which the end of a loop would not. */
async function firstText(stream) {
  const chunks = stream[Symbol.asyncIterator]();
  for (;;) {
    const { value, done } = await chunks.next();
    if (done) throw new Error("the stream had no text");
    const text = value.choices[0].delta.content;
    if (text) return text;
  }
}

const tasks = {
  async exchange() {
    const whole = await client.chat.completions.create({ model, messages });
    const options = { stream: true, stream_options: { include_usage: true } };
    let streamed = "";
    let usage;
    let finish;
    for await (const chunk of await client.chat.completions.create({ model, messages, ...options })) {
      const choice = chunk.choices[0];
      streamed += choice?.delta.content ?? "";
      finish = choice?.finish_reason ?? finish;
      usage = chunk.usage ?? usage;
    }
    return { whole: whole.choices[0].message.content, streamed, finish, tokens: usage.total_tokens };
  },

  async tools() {
    const first = await client.chat.completions.create({ model, messages, tools });
    const { message } = first.choices[0];
    const call = message.tool_calls[0];
    const result = { role: "tool", tool_call_id: call.id, content: "rain" };
    const stream = client.chat.completions.stream({ model, messages: [...messages, message, result], tools });
    let text = "";
    stream.on("content", (delta) => (text += delta));
    await stream.finalChatCompletion();
    return { call: [call.function.name, JSON.parse(call.function.arguments)], text };
  },

  async runTools() {
    const asked = [];
    const look = ({ place }) => {
      asked.push(place);
      return "rain";
    };
    const tool = { name: "weather", parameters, parse: JSON.parse, function: look };
    const runner = client.chat.completions.runTools({
      model,
      messages,
      stream: true,
      tools: [{ type: "function", function: tool }],
    });
    return { text: await runner.finalContent(), asked };
  },

  async leave() {
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    const seen = await firstText(stream);
    stream.controller.abort();
    const next = await client.chat.completions.create({ model, messages });
    return { seen, next: next.choices[0].message.content };
  },

  async lost() {
    const seen = await firstText(await client.chat.completions.create({ model, messages, stream: true }));
    console.log(JSON.stringify({ seen }));
    process.exit(0);
  },

  async stopped() {
    const request = client.chat.completions.create({ model, messages, stream: true });
    const { data, response } = await request.withResponse();
    let text = "";
    let receipt;
    try {
      for await (const chunk of data) {
        text += chunk.choices[0].delta.content ?? "";
        if (text && !receipt) receipt = (await stopRun(response.headers.get("x-quell-run"))).receipt;
      }
    } catch (error) {
      if (!(error instanceof OpenAI.APIError)) throw error;
      return { text, error: error.code, verdict: receipt.verdict };
    }
    return { text, error: null };
  },

  async errors() {
    const stranger = new OpenAI({ baseURL: `${address}/v1`, apiKey: "wrong" });
    const create = (more) => () => client.chat.completions.create({ model, messages, ...more });
    return {
      model: await errorOf(create({ model: "nowhere/m" })),
      field: await errorOf(create({ n: 3 })),
      key: await errorOf(() => stranger.chat.completions.create({ model, messages })),
      models: await idsOf(client.models.list()),
    };
  },
};

async function errorOf(request) {
  try {
    await request();
  } catch (error) {
    return [error.constructor.name, error.code, error.param];
  }
  return null;
}

async function idsOf(list) {
  const ids = [];
  for await (const item of list) ids.push(item.id);
  return ids;
}

console.log(JSON.stringify(await tasks[task]()));
