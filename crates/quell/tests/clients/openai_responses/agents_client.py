"""OpenAI's agents library against Quell: a loop of tools, then a stop in the middle. Prints what it has seen as JSON."""

import asyncio
import json
import sys

from agents import (
    Agent,
    Runner,
    function_tool,
    set_default_openai_api,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

API, ADDRESS, TOKEN = sys.argv[1:]
MODEL = "scripted/model"
looked = []


@function_tool
def look(at: str) -> str:
    """Looks."""
    looked.append(at)
    return "a cat"


async def main():
    set_default_openai_client(AsyncOpenAI(base_url=f"{ADDRESS}/v1", api_key=TOKEN), use_for_tracing=False)
    set_default_openai_api("chat_completions" if API == "chat" else "responses")
    set_tracing_disabled(True)
    agent = Agent(name="Ann", instructions="Be brief.", tools=[look], model=OpenAIModel)
    answer = (await Runner.run(agent, "What is there?")).final_output
    running = Runner.run_streamed(agent, "And then?")
    begun = ""
    async for event in running.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            begun += event.data.delta
            running.cancel()
    following = (await Runner.run(agent, "And now?")).final_output
    print(json.dumps({"looked": looked, "answer": answer, "begun": begun, "next": following}))


if API == "chat":
    from agents import OpenAIChatCompletionsModel as Model
else:
    from agents import OpenAIResponsesModel as Model

OpenAIModel = Model(model=MODEL, openai_client=AsyncOpenAI(base_url=f"{ADDRESS}/v1", api_key=TOKEN))
asyncio.run(main())
