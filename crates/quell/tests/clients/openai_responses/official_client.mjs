// Tasks for OpenAI's official client against Quell's Responses API. Prints what it has seen as JSON.

import OpenAI from "openai";

const [task, address, token] = process.argv.slice(2);
const model = "scripted/model";
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: token });
const tool = {
  type: "function",
  name: "look",
  description: "Looks.",
  strict: true,
  parameters: {
    type: "object",
    properties: { at: { type: "string" } },
    required: ["at"],
    additionalProperties: false,
  },
};
const pause = () => new Promise((resolve) => setTimeout(resolve, 10));

async function poll(response) {
  while (response.status === "in_progress") {
    await pause();
    response = await client.responses.retrieve(response.id);
  }
  return response;
}

async function typesOf(list) {
  const types = [];
  for await (const item of list) types.push(item.type);
  return types;
}

/** Repeats a request until the response is stored. */
async function onceStored(request) {
  for (;;) {
    try {
      return await request();
    } catch (error) {
      if (!(error instanceof OpenAI.NotFoundError)) throw error;
      await pause();
    }
  }
}

const tasks = {
  async create() {
    const first = await client.responses.create({ model, input: "What is there?", tools: [tool] });
    const call = first.output.find((item) => item.type === "function_call");
    const output = { type: "function_call_output", call_id: call.call_id, output: "a cat" };
    const stream = client.responses.stream({
      model,
      tools: [tool],
      previous_response_id: first.id,
      input: [output],
    });
    let streamed = "";
    let thinking = "";
    for await (const event of stream) {
      if (event.type === "response.output_text.delta") streamed += event.delta;
      if (event.type === "response.reasoning_summary_text.delta") thinking += event.delta;
    }
    const final = await stream.finalResponse();
    const inputs = await typesOf(await client.responses.inputItems.list(final.id));
    const retrieved = (await client.responses.retrieve(final.id)).output_text;
    const conversation = await client.conversations.create({});
    const inside = await client.responses.create({ model, input: "hello", conversation: conversation.id });
    const items = await typesOf(await client.conversations.items.list(conversation.id));
    const counted = (await client.responses.inputTokens.count({ model, input: "hello" })).input_tokens > 0;
    await client.responses.delete(final.id);
    const deleted = (await errorOf(() => client.responses.retrieve(final.id)))[1];
    return {
      call: [call.name, JSON.parse(call.arguments)],
      streamed,
      final: final.output_text,
      thinking,
      retrieved,
      inputs,
      conversation: inside.output_text,
      items,
      counted,
      deleted,
    };
  },

  async leave() {
    let id;
    for await (const event of await client.responses.create({ model, input: "a", stream: true })) {
      if (event.type === "response.created") id = event.response.id;
      if (event.type === "response.output_text.delta") break;
    }
    const next = await client.responses.create({ model, input: "b" });
    const stopped = await onceStored(() => client.responses.retrieve(id));
    return { next: next.output_text, stopped: stopped.status };
  },

  async stopped() {
    let text = "";
    let last;
    let id;
    for await (const event of await client.responses.create({ model, input: "a", stream: true })) {
      last = event.type;
      if (event.response) id = event.response.id;
      if (event.type === "response.output_text.delta") {
        text += event.delta;
        const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
        const stop = await fetch(`${address}/api/stop`, { method: "POST", headers, body: "{}" });
        if (!stop.ok) throw new Error(await stop.text());
      }
    }
    return { text, last, status: (await client.responses.retrieve(id)).status };
  },

  async background() {
    const polled = await poll(await client.responses.create({ model, input: "a", background: true }));
    const response = await client.responses.create({ model, input: "b", background: true });
    const cancelled = [];
    for (let times = 0; times < 2; times += 1) {
      cancelled.push((await client.responses.cancel(response.id)).status);
    }
    let first;
    for await (const event of await client.responses.create({ model, input: "c", stream: true })) {
      first = event.response;
      break;
    }
    let foreground;
    try {
      await onceStored(() => client.responses.cancel(first.id));
    } catch (error) {
      foreground = error.status;
    }
    return { polled: polled.output_text, cancelled, foreground };
  },

  async resume() {
    let text = "";
    let seen;
    let id;
    const stream = await client.responses.create({ model, input: "a", background: true, stream: true });
    for await (const event of stream) {
      seen = event.sequence_number;
      if (event.type === "response.created") id = event.response.id;
      if (event.type === "response.output_text.delta") {
        text += event.delta;
        break;
      }
    }
    const resumed = await client.responses.retrieve(id, { stream: true, starting_after: seen });
    await client.responses.create({ model, input: "go on" });
    let gap = 0;
    let last;
    for await (const event of resumed) {
      gap += event.sequence_number - seen - 1;
      seen = event.sequence_number;
      last = event.type;
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    const numbers = [];
    for await (const event of await client.responses.retrieve(id, { stream: true })) {
      numbers.push(event.sequence_number);
    }
    const again = numbers.length === seen + 1 && numbers.every((number, at) => number === at);
    return { text, gap, last, again };
  },

  async errors() {
    const stranger = new OpenAI({ baseURL: `${address}/v1`, apiKey: "nonsense" });
    const create = (more) => () => client.responses.create({ model, input: "a", ...more });
    return {
      model: await errorOf(create({ model: "nowhere/m" })),
      field: await errorOf(create({ tools: [{ type: "web_search" }] })),
      previous: await errorOf(create({ previous_response_id: "resp_1" })),
      response: await errorOf(() => client.responses.retrieve("resp_1")),
      key: await errorOf(() => stranger.responses.create({ model, input: "a" })),
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

console.log(JSON.stringify(await tasks[task]()));
