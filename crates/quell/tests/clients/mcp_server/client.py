"""The official Python client of MCP against Quell: every step is printed as a line of JSON.

Environment: QUELL_TEST_MCP (the URL of the MCP endpoint, or the path of `quell` for standard input and output),
QUELL_TEST_MODE (`legacy` or a version), QUELL_TEST_API (the API), and the tokens QUELL_TEST_WRITER, QUELL_TEST_READER
and QUELL_TEST_ADMIN.
"""

import asyncio
import json
import os
import urllib.request

import httpx2
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

endpoint = os.environ["QUELL_TEST_MCP"]
mode = os.environ["QUELL_TEST_MODE"]
api = os.environ["QUELL_TEST_API"]
is_stdio = not endpoint.startswith("http")


def show(step, **facts):
    print(json.dumps({"step": step, **facts}), flush=True)


def client(token):
    if is_stdio:
        env = {"QUELL_URL": api, "QUELL_TOKEN": os.environ[token]}
        return Client(StdioServerParameters(command=endpoint, args=["mcp"], env=env), mode=mode)
    headers = {"Authorization": "Bearer " + os.environ[token]}
    http = httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(60))
    return Client(streamable_http_client(endpoint, http_client=http), mode=mode)


def ask(method, path):
    headers = {"Authorization": "Bearer " + os.environ["QUELL_TEST_ADMIN"], "Content-Type": "application/json"}
    request = urllib.request.Request(api + path, method=method, headers=headers, data=b"{}" if method == "POST" else None)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


async def active_run(message):
    """Waits until the run of this message streams."""
    while True:
        page = await asyncio.to_thread(ask, "GET", "/api/runs?state=active")
        for run in page["items"]:
            if run["text"] == message and run.get("phase") == "waiting_llm":
                return run["runId"]
        await asyncio.sleep(0.02)


async def ended_run(run):
    while True:
        view = await asyncio.to_thread(ask, "GET", f"/api/runs/{run}")
        if view["state"] == "ended":
            return view
        await asyncio.sleep(0.02)


async def main():
    async with client("QUELL_TEST_WRITER") as quell:
        tools = await quell.list_tools()
        show("hello", version=quell.protocol_version, tools=sorted(tool.name for tool in tools.tools))

        progress = []

        async def note(value, total, message):
            progress.append([value, message])

        result = await quell.call_tool("run_agent", {"message": "normal"}, progress_callback=note)
        run = result.structured_content
        show("normal", text=result.content[0].text, error=result.is_error, run=run, progress=progress)

        receipt = await quell.read_resource(f"quell://runs/{run['runId']}/receipt")
        history = await quell.read_resource(f"quell://sessions/{run['sessionKey'].replace(':', '%3A')}/history")
        listed = await quell.list_resources()
        show(
            "resources",
            receipt=json.loads(receipt.contents[0].text)["runId"],
            history=len(json.loads(history.contents[0].text)["items"]),
            listed=[resource.uri for resource in listed.resources],
        )

        call = asyncio.create_task(quell.call_tool("run_agent", {"message": "own stop"}))
        stopped = await active_run("own stop")
        call.cancel()
        try:
            await call
            show("own stop", problem="the call was answered")
        except asyncio.CancelledError:
            show("own stop", run=await ended_run(stopped))

        call = asyncio.create_task(quell.call_tool("run_agent", {"message": "other stop"}))
        stopped = await active_run("other stop")
        await asyncio.to_thread(ask, "POST", f"/api/runs/{stopped}/stop?wait=1")
        result = await call
        show("other stop", text=result.content[0].text, error=result.is_error, run=result.structured_content)

        bad = {}
        for name, arguments in [("no_such_tool", {}), ("run_agent", {}), ("run_agent", {"message": 7})]:
            try:
                await quell.call_tool(name, arguments)
            except MCPError as error:
                bad.setdefault(name, []).append(error.code)
        result = await quell.call_tool("run_agent", {"message": "x", "agent": "nobody"})
        show("bad input", codes=bad, unknown_agent=[result.is_error, result.structured_content["code"]])

    async with client("QUELL_TEST_READER") as reader:
        try:
            await reader.call_tool("run_agent", {"message": "not allowed"})
        except MCPError as error:
            show("no right", code=error.code, data=error.error.data)

    if is_stdio:
        async with client("QUELL_TEST_WRITER") as quell:
            call = asyncio.create_task(quell.call_tool("run_agent", {"message": "lost"}))
            lost = await active_run("lost")
            call.cancel()
        show("lost", run=await ended_run(lost))
        return
    async with client("QUELL_TEST_WRITER") as quell:
        try:
            result = await quell.call_tool("run_agent", {"message": "lost"})
            show("lost", text=result.content[0].text)
        except Exception as error:
            show("lost", problem=type(error).__name__)


asyncio.run(main())
