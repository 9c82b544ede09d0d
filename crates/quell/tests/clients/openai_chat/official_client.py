"""Uses chat completions with OpenAI's own client, and prints what it saw as JSON.

Arguments: the task, the address of the daemon, the token.
"""

import json
import os
import sys
import urllib.request

import openai

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]
QUESTION = [{"role": "user", "content": "How is the weather in Bern?"}]
MODEL = "scripted/model"


def new_client(address, token):
    return openai.OpenAI(base_url=f"{address}/v1", api_key=token, max_retries=2)


def stop_run(address, token, run):
    request = urllib.request.Request(
        f"{address}/api/runs/{run}/stop?wait=1",
        data=b"{}",
        headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))


def exchange(client, *_):
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed, finish, usage = "", None, None
    for chunk in client.chat.completions.create(model=MODEL, messages=QUESTION, **options):
        for choice in chunk.choices:
            streamed += choice.delta.content or ""
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    tokens = usage.total_tokens
    return {"whole": whole.choices[0].message.content, "streamed": streamed, "finish": finish, "tokens": tokens}


def tools(client, *_):
    first = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS)
    message = first.choices[0].message
    call = message.tool_calls[0]
    messages = QUESTION + [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
    return {"call": [call.function.name, json.loads(call.function.arguments)], "text": text}


def leave(client, *_):
    with client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True) as stream:
        seen = first_text(stream)
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION)
    return {"seen": seen, "next": answer.choices[0].message.content}


def first_text(stream):
    return next(text for chunk in stream if (text := chunk.choices[0].delta.content))


def lost(client, *_):
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
    print(json.dumps({"seen": first_text(stream)}), flush=True)
    os._exit(0)


def stopped(client, address, token):
    seen = ""
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION, stream=True)
    receipt = None
    try:
        for chunk in raw.parse():
            seen += chunk.choices[0].delta.content or ""
            if seen and receipt is None:
                receipt = stop_run(address, token, raw.headers["x-quell-run"])["receipt"]
    except openai.APIError as error:
        return {"text": seen, "error": error.code, "verdict": receipt["verdict"]}
    return {"text": seen, "error": None}


def errors(client, address, _token):
    seen = {}
    attempts = {
        "model": lambda: client.chat.completions.create(model="nowhere/m", messages=QUESTION),
        "field": lambda: client.chat.completions.create(model=MODEL, messages=QUESTION, n=3),
        "key": lambda: new_client(address, "wrong").chat.completions.create(model=MODEL, messages=QUESTION),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except openai.APIStatusError as error:
            seen[name] = [type(error).__name__, error.code, error.param]
    seen["models"] = [model.id for model in client.models.list()]
    return seen


def main():
    task, address, token = sys.argv[1:]
    seen = globals()[task](new_client(address, token), address, token)
    print(json.dumps(seen))


main()
