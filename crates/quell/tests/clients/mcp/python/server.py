"""A FastMCP server for the tests: on standard input and output, or with a port on streamable HTTP."""

import asyncio
import sys
import time
from dataclasses import dataclass

from fastmcp import Context, FastMCP
from mcp.types import ToolAnnotations, ToolListChangedNotification

READ_ONLY = ToolAnnotations(readOnlyHint=True)
server = FastMCP("quell-tests")
arrived = 0
both_arrived = asyncio.Event()


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool(annotations=READ_ONLY)
async def meet() -> str:
    """Answers when two calls are at work at the same time."""
    global arrived
    arrived += 1
    if arrived == 2:
        both_arrived.set()
    await both_arrived.wait()
    return "met"


@server.tool
async def nap(seconds: float, ctx: Context) -> str:
    """Sleeps. A cancel ends it."""
    await ctx.report_progress(1, 2)
    await asyncio.sleep(seconds)
    return "rested"


@server.tool
async def spin(seconds: float, ctx: Context) -> str:
    """Works in a thread, which no cancel reaches."""
    await ctx.report_progress(1, 2)
    await asyncio.to_thread(time.sleep, seconds)
    return "done"


@dataclass
class Person:
    name: str
    age: int


@server.tool
async def ask(ctx: Context) -> str:
    """Asks the user for a name and an age."""
    answer = await ctx.elicit("Who are you?", response_type=Person)
    if answer.action == "accept":
        return f"{answer.data.name} is {answer.data.age}"
    return answer.action


@server.tool
async def grow(ctx: Context) -> str:
    """Adds a tool."""

    @server.tool
    def grown() -> str:
        """The new tool."""
        return "here"

    await ctx.send_notification(ToolListChangedNotification())
    return "grown"


@server.resource("notes://today")
def today() -> str:
    """The notes of today."""
    return "Buy milk."


@server.prompt
def review(topic: str) -> str:
    """Asks for a review."""
    return f"Review {topic}."


if len(sys.argv) > 1:
    server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
else:
    server.run(show_banner=False)
