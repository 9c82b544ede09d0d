"""Uses Quell's Messages API with Anthropic's own client, and prints one JSON object a line about what it saw.

Arguments: the task, the address, the key, and the model.
"""

import json
import os
import sys

import anthropic

TASK, ADDRESS, KEY, MODEL = sys.argv[1:5]
PNG = "iVBORw0KGgo="
TOOLS = [{"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}]
QUESTION = [{"role": "user", "content": "what is there?"}]

client = anthropic.Anthropic(base_url=ADDRESS, api_key=KEY, max_retries=0)


def say(**seen):
    print(json.dumps(seen), flush=True)


def stream(messages, **more):
    return client.messages.stream(model=MODEL, max_tokens=4000, messages=messages, **more)


def usage_of(message):
    usage = message.usage
    return [usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens]


def exchange():
    message = client.messages.create(model=MODEL, max_tokens=4000, system="Be brief.", messages=QUESTION)
    say(text=message.content[-1].text, stop=message.stop_reason, usage=usage_of(message), model=message.model)
    with stream(QUESTION, stop_sequences=["END"] if "anthropic" in MODEL else []) as events:
        text = "".join(events.text_stream)
        message = events.get_final_message()
    say(text=text, stop=message.stop_reason, sequence=message.stop_sequence, usage=usage_of(message))


def tools():
    with stream(QUESTION, tools=TOOLS) as events:
        message = events.get_final_message()
    calls = [block for block in message.content if block.type == "tool_use"]
    say(kinds=[block.type for block in message.content], stop=message.stop_reason,
        calls=[[call.name, call.input] for call in calls])
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": f"a file {at}"} for at, call in enumerate(calls)]
    answers = [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    message = client.messages.create(model=MODEL, max_tokens=4000, messages=QUESTION + answers, tools=TOOLS)
    say(text=message.content[-1].text, stop=message.stop_reason)


def images():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    content = [image, {"type": "text", "text": "what is in it?"}]
    message = client.messages.create(model=MODEL, max_tokens=4000, messages=[{"role": "user", "content": content}])
    say(text=message.content[-1].text)


def client_stop():
    with stream(QUESTION) as events:
        say(run=events.response.headers["x-quell-run"])
        for text in events.text_stream:
            say(text=text)
            break
    message = client.messages.create(model=MODEL, max_tokens=4000, messages=QUESTION)
    say(text=message.content[-1].text)


def read_to_end():
    text = ""
    try:
        with stream(QUESTION) as events:
            say(run=events.response.headers["x-quell-run"])
            for piece in events.text_stream:
                text += piece
                say(piece=piece)
        say(text=text, error=None)
    except anthropic.APIError as error:
        say(text=text, error=type(error).__name__, body=error.body)


def lost():
    with stream(QUESTION) as events:
        say(run=events.response.headers["x-quell-run"])
        for text in events.text_stream:
            say(text=text)
            os._exit(0)


def refused():
    good = {"model": MODEL, "max_tokens": 10, "messages": QUESTION}
    document = [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}]
    bad = [
        {"model": "nobody/x"},
        {"model": "agent/nobody"},
        {"messages": []},
        {"messages": [{"role": "user", "content": document}]},
        {"extra_body": {"top_k": 3}},
        {"extra_body": {"colour": "red"}},
        {"extra_body": {"max_tokens": "many"}},
    ]
    for more in bad:
        say(**refusal(lambda: client.messages.create(**{**good, **more})))
    other = anthropic.Anthropic(base_url=ADDRESS, api_key="wrong", max_retries=0)
    say(**refusal(lambda: other.messages.create(**good)))
    say(**refusal(lambda: client.models.retrieve("nobody/x")))


def refusal(call):
    try:
        call()
    except anthropic.APIStatusError as error:
        body = error.body["error"]
        return {"class": type(error).__name__, "status": error.status_code, "type": body["type"], "message": body["message"]}
    return {"class": None}


def count():
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION, tools=TOOLS)
    say(tokens=counted.input_tokens)
    say(models=[model.id for model in client.models.list(limit=1)])
    say(model=client.models.retrieve(MODEL).id)


{
    "exchange": exchange,
    "tools": tools,
    "images": images,
    "client_stop": client_stop,
    "read_to_end": read_to_end,
    "lost": lost,
    "refused": refused,
    "count": count,
}[TASK]()
