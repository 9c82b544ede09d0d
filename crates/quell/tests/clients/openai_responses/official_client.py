"""Tasks for OpenAI's official client against Quell's Responses API. Prints what it has seen as JSON."""

import json
import sys
import time
import urllib.request

import openai

TASK, ADDRESS, TOKEN = sys.argv[1:]
MODEL = "scripted/model"
TOOL = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"at": {"type": "string"}},
        "required": ["at"],
        "additionalProperties": False,
    },
}

client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key=TOKEN)


def poll(response):
    while response.status == "in_progress":
        time.sleep(0.01)
        response = client.responses.retrieve(response.id)
    return response


def create():
    first = client.responses.create(model=MODEL, input="What is there?", tools=[TOOL])
    call = next(item for item in first.output if item.type == "function_call")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "a cat"}
    streamed, thinking = "", ""
    arguments = {"model": MODEL, "tools": [TOOL], "previous_response_id": first.id, "input": [output]}
    with client.responses.stream(**arguments) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                streamed += event.delta
            if event.type == "response.reasoning_summary_text.delta":
                thinking += event.delta
        final = stream.get_final_response()
    inputs = [item.type for item in client.responses.input_items.list(final.id)]
    retrieved = client.responses.retrieve(final.id).output_text
    conversation = client.conversations.create()
    inside = client.responses.create(model=MODEL, input="hello", conversation=conversation.id)
    items = [item.type for item in client.conversations.items.list(conversation.id)]
    counted = client.responses.input_tokens.count(model=MODEL, input="hello").input_tokens > 0
    client.responses.delete(final.id)
    try:
        client.responses.retrieve(final.id)
        deleted = None
    except openai.NotFoundError as error:
        deleted = error.code
    return {
        "call": [call.name, json.loads(call.arguments)],
        "streamed": streamed,
        "final": final.output_text,
        "thinking": thinking,
        "retrieved": retrieved,
        "inputs": inputs,
        "conversation": inside.output_text,
        "items": items,
        "counted": counted,
        "deleted": deleted,
    }


def leave():
    stream = client.responses.create(model=MODEL, input="a", stream=True)
    for event in stream:
        if event.type == "response.created":
            response = event.response
        if event.type == "response.output_text.delta":
            break
    stream.close()
    following = client.responses.create(model=MODEL, input="b")
    while True:
        try:
            stopped = client.responses.retrieve(response.id).status
            break
        except openai.NotFoundError:
            time.sleep(0.01)
    return {"next": following.output_text, "stopped": stopped}


def stopped():
    text, last = "", None
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    for event in client.responses.create(model=MODEL, input="a", stream=True):
        last = event.type
        if event.type == "response.output_text.delta":
            text += event.delta
            urllib.request.urlopen(urllib.request.Request(f"{ADDRESS}/api/stop", data=b"{}", headers=headers)).read()
        if hasattr(event, "response"):
            response = event.response
    return {"text": text, "last": last, "status": client.responses.retrieve(response.id).status}


def background():
    polled = poll(client.responses.create(model=MODEL, input="a", background=True))
    response = client.responses.create(model=MODEL, input="b", background=True)
    cancelled = [client.responses.cancel(response.id).status for _ in range(2)]
    foreground = client.responses.create(model=MODEL, input="c", background=False, stream=True)
    first = next(iter(foreground)).response
    foreground.close()
    while True:
        try:
            client.responses.cancel(first.id)
        except openai.NotFoundError:
            time.sleep(0.01)
        except openai.BadRequestError as error:
            return {"polled": polled.output_text, "cancelled": cancelled, "foreground": error.status_code}


def resume():
    text, seen = "", None
    stream = client.responses.create(model=MODEL, input="a", background=True, stream=True)
    for event in stream:
        seen = event.sequence_number
        if event.type == "response.created":
            response = event.response
        if event.type == "response.output_text.delta":
            text += event.delta
            break
    stream.close()
    resumed = client.responses.retrieve(response.id, stream=True, starting_after=seen)
    client.responses.create(model=MODEL, input="go on")
    gap, last = 0, None
    for event in resumed:
        gap += event.sequence_number - seen - 1
        seen, last = event.sequence_number, event.type
        if event.type == "response.output_text.delta":
            text += event.delta
    numbers = [event.sequence_number for event in client.responses.retrieve(response.id, stream=True)]
    return {"text": text, "gap": gap, "last": last, "again": numbers == list(range(seen + 1))}


def error_of(call):
    try:
        call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.code, error.param]
    return None


def errors():
    stranger = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="nonsense")
    responses = client.responses
    tools = [{"type": "web_search"}]
    return {
        "model": error_of(lambda: responses.create(model="nowhere/m", input="a")),
        "field": error_of(lambda: responses.create(model=MODEL, input="a", tools=tools)),
        "previous": error_of(lambda: responses.create(model=MODEL, input="a", previous_response_id="resp_1")),
        "response": error_of(lambda: responses.retrieve("resp_1")),
        "key": error_of(lambda: stranger.responses.create(model=MODEL, input="a")),
    }


print(json.dumps(globals()[TASK]()))
