"""Runs a tool loop and a failing request with the official client of a dialect, and prints what the client saw.

Arguments: the kind of the dialect, with `-search` behind it for a search of the provider, and the address of the server.
"""

import json
import sys

QUESTION = "list the files"
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
OUTPUTS = {"call_1": "Cargo.toml", "call_2": "/work"}


def openai_chat(address):
    import openai

    client = openai.OpenAI(base_url=f"{address}/v1", api_key="sk-test", max_retries=0)
    tools = [{"type": "function", "function": {"name": "shell", "parameters": SCHEMA}}]

    def stream(messages):
        return client.chat.completions.create(
            model="m", messages=messages, tools=tools, stream=True, stream_options={"include_usage": True}
        )

    seen = {"text": "", "thinking": ""}
    calls, usage = {}, None
    messages = [{"role": "user", "content": QUESTION}]
    for chunk in stream(messages):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            seen["text"] += choice.delta.content or ""
            seen["thinking"] += getattr(choice.delta, "reasoning_content", None) or ""
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
                call["arguments"] += part.function.arguments or ""
    seen["calls"] = [[c["id"], c["name"], json.loads(c["arguments"])] for c in calls.values()]
    cached = usage.prompt_tokens_details.cached_tokens
    seen["usage"] = {"input": usage.prompt_tokens, "output": usage.completion_tokens, "cached": cached}
    said = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in calls.values()
    ]
    messages.append(
        {"role": "assistant", "content": seen["text"], "tool_calls": said, "reasoning_content": seen["thinking"]}
    )
    messages += [{"role": "tool", "tool_call_id": id, "content": output} for id, output in OUTPUTS.items()]
    parts = (chunk.choices[0].delta.content for chunk in stream(messages) if chunk.choices)
    seen["answer"] = "".join(part or "" for part in parts)
    try:
        for _ in stream(messages):
            pass
    except openai.APIError as error:
        seen["error"] = str(error)
    return seen


def openai_responses(address):
    import openai

    client = openai.OpenAI(base_url=f"{address}/v1", api_key="sk-test", max_retries=0)
    tools = [{"type": "function", "name": "shell", "parameters": SCHEMA, "strict": False}]
    settings = {"model": "m", "tools": tools, "store": False, "include": ["reasoning.encrypted_content"]}
    items = [{"type": "message", "role": "user", "content": QUESTION}]
    seen = {"text": "", "thinking": ""}
    # The helper accumulates the events and fails at one that does not fit its predecessors.
    with client.responses.stream(input=items, **settings) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                seen["text"] += event.delta
            elif event.type == "response.reasoning_summary_text.delta":
                seen["thinking"] += event.delta
        response = stream.get_final_response()
    calls = [item for item in response.output if item.type == "function_call"]
    seen["calls"] = [[call.call_id, call.name, json.loads(call.arguments)] for call in calls]
    cached = response.usage.input_tokens_details.cached_tokens
    seen["usage"] = {
        "input": response.usage.input_tokens,
        "output": response.usage.output_tokens,
        "cached": cached,
    }
    for item in response.output:
        kept = item.model_dump(exclude_none=True, by_alias=True)
        kept.pop("parsed_arguments", None)
        for part in kept.get("content", []):
            part.pop("parsed", None)
        items.append(kept)
    items += [{"type": "function_call_output", "call_id": id, "output": output} for id, output in OUTPUTS.items()]
    answer = client.responses.create(input=items, stream=True, **settings)
    seen["answer"] = "".join(event.delta for event in answer if event.type == "response.output_text.delta")
    for event in client.responses.create(input=items, stream=True, **settings):
        if event.type == "error":
            seen["error"] = event.message
    return seen


def anthropic(address):
    import anthropic

    client = anthropic.Anthropic(base_url=address, api_key="sk-test", max_retries=0)
    tools = [{"name": "shell", "input_schema": SCHEMA}]
    settings = {"model": "m", "tools": tools, "max_tokens": 4096, "thinking": {"type": "enabled", "budget_tokens": 2048}}
    messages = [{"role": "user", "content": QUESTION}]
    seen = {"text": "", "thinking": ""}
    with client.messages.stream(messages=messages, **settings) as stream:
        for event in stream:
            if event.type == "text":
                seen["text"] += event.text
            elif event.type == "thinking":
                seen["thinking"] += event.thinking
        message = stream.get_final_message()
    seen["calls"] = [[block.id, block.name, block.input] for block in message.content if block.type == "tool_use"]
    cached = message.usage.cache_read_input_tokens
    seen["usage"] = {"input": message.usage.input_tokens + cached, "output": message.usage.output_tokens, "cached": cached}
    fields = {"thinking": ("type", "thinking", "signature"), "text": ("type", "text"), "tool_use": ("type", "id", "name", "input")}
    kept = [{name: getattr(block, name) for name in fields[block.type]} for block in message.content]
    messages.append({"role": "assistant", "content": kept})
    results = [{"type": "tool_result", "tool_use_id": id, "content": output} for id, output in OUTPUTS.items()]
    messages.append({"role": "user", "content": results})
    with client.messages.stream(messages=messages, **settings) as stream:
        seen["answer"] = stream.get_final_text()
    try:
        with client.messages.stream(messages=messages, **settings) as stream:
            stream.until_done()
    except anthropic.APIError as error:
        seen["error"] = str(error)
    return seen


def gemini(address):
    from google import genai
    from google.genai import errors, types

    client = genai.Client(api_key="sk-test", http_options=types.HttpOptions(base_url=address))
    declaration = types.FunctionDeclaration(name="shell", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[declaration])],
        thinking_config=types.ThinkingConfig(include_thoughts=True),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )

    def stream(contents):
        return client.models.generate_content_stream(model="m", contents=contents, config=config)

    contents = [types.Content(role="user", parts=[types.Part(text=QUESTION)])]
    seen = {"text": "", "thinking": "", "calls": []}
    kept = []
    for piece in stream(contents):
        usage = piece.usage_metadata
        for part in piece.candidates[0].content.parts:
            if part.function_call:
                seen["calls"].append([part.function_call.id, part.function_call.name, part.function_call.args])
                kept.append(part)
            elif part.thought:
                seen["thinking"] += part.text
            elif part.text:
                seen["text"] += part.text
                kept.append(part)
    seen["usage"] = {
        "input": usage.prompt_token_count,
        "output": usage.candidates_token_count,
        "cached": usage.cached_content_token_count,
    }
    contents.append(types.Content(role="model", parts=kept))
    results = [
        types.Part(function_response=types.FunctionResponse(id=id, name="shell", response={"output": output}))
        for id, output in OUTPUTS.items()
    ]
    contents.append(types.Content(role="user", parts=results))
    seen["answer"] = "".join(piece.text or "" for piece in stream(contents))
    try:
        for _ in stream(contents):
            pass
    except errors.APIError as error:
        seen["error"] = str(error)
    return seen


def openai_responses_search(address):
    """A search of the provider: the page is cited, and the search goes back in the next request."""
    import openai

    client = openai.OpenAI(base_url=f"{address}/v1", api_key="sk-test", max_retries=0)
    settings = {"model": "m", "tools": [{"type": "web_search"}], "store": False}
    items = [{"type": "message", "role": "user", "content": QUESTION}]
    with client.responses.stream(input=items, **settings) as stream:
        for _ in stream:
            pass
        response = stream.get_final_response()
    seen = {"text": response.output_text, "searches": [], "pages": []}
    for item in response.output:
        if item.type == "web_search_call":
            seen["searches"] += item.action.queries
            items.append(item.model_dump(exclude_none=True))
        else:
            seen["pages"] += [[note.url, note.title] for part in item.content for note in part.annotations]
            items.append({"role": "assistant", "content": response.output_text, "type": "message"})
    items.append({"type": "message", "role": "user", "content": "sure?"})
    seen["answer"] = client.responses.create(input=items, **settings, stream=True) and "sent"
    return seen


def gemini_search(address):
    """A search of the service beside a function: the page is cited, and the search goes back in the next request."""
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="sk-test", http_options=types.HttpOptions(base_url=address))
    declaration = types.FunctionDeclaration(name="shell", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[declaration]), types.Tool(google_search=types.GoogleSearch())],
        tool_config=types.ToolConfig(include_server_side_tool_invocations=True),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    contents = [types.Content(role="user", parts=[types.Part(text=QUESTION)])]
    seen, kept = {"text": "", "searches": [], "pages": []}, []
    for piece in client.models.generate_content_stream(model="m", contents=contents, config=config):
        candidate = piece.candidates[0]
        for part in candidate.content.parts:
            if part.text:
                seen["text"] += part.text
            if part.text or part.tool_call or part.tool_response:
                kept.append(part)
        grounding = candidate.grounding_metadata
        if grounding:
            seen["searches"] += grounding.web_search_queries
            seen["pages"] += [[chunk.web.uri, chunk.web.title] for chunk in grounding.grounding_chunks]
    contents.append(types.Content(role="model", parts=kept))
    contents.append(types.Content(role="user", parts=[types.Part(text="sure?")]))
    for _ in client.models.generate_content_stream(model="m", contents=contents, config=config):
        seen["answer"] = "sent"
    return seen


CLIENTS = {
    "openai": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
    "openai-responses-search": openai_responses_search,
    "gemini-search": gemini_search,
}

if __name__ == "__main__":
    print(json.dumps(CLIENTS[sys.argv[1]](sys.argv[2])))
