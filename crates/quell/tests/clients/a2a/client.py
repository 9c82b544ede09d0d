"""The official Python client of A2A against Quell: every step is printed as a line of JSON.

Environment: QUELL_TEST_A2A, whose connections the test cuts when the step `streaming` is printed; QUELL_TEST_API, the
daemon itself; QUELL_TEST_BINDING (`JSONRPC` or `HTTP+JSON`), and the tokens QUELL_TEST_WRITER, QUELL_TEST_READER,
QUELL_TEST_STRANGER, QUELL_TEST_APPROVER and QUELL_TEST_ADMIN. QUELL_TEST_RECEIVER gets push notifications.
"""

import asyncio
import json
import os
import urllib.request
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types.a2a_pb2 import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from google.protobuf.json_format import MessageToDict

base = os.environ["QUELL_TEST_A2A"]
api = os.environ["QUELL_TEST_API"]
binding = os.environ["QUELL_TEST_BINDING"]


def show(step, **facts):
    print(json.dumps({"step": step, **facts}), flush=True)


def ask(method, path):
    headers = {"Authorization": "Bearer " + os.environ["QUELL_TEST_ADMIN"], "Content-Type": "application/json"}
    request = urllib.request.Request(api + path, method=method, headers=headers, data=b"{}" if method == "POST" else None)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


async def connect(token, streaming=True, agent=""):
    http = httpx.AsyncClient(headers={"Authorization": "Bearer " + os.environ[token]}, timeout=60)
    card = await A2ACardResolver(http, base + agent).get_agent_card()
    config = ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding])
    return card, ClientFactory(config).create(card)


def message(text, **fields):
    parts = [Part(text=text)]
    return SendMessageRequest(message=Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=parts, **fields))


def state(status):
    return TaskState.Name(status.state)


class Seen:
    """What a stream has told."""

    def __init__(self):
        self.first, self.states, self.answer, self.task, self.status = None, [], "", None, None


async def collect(events, on_event=None, seen=None):
    seen = seen or Seen()
    async for event in events:
        kind = event.WhichOneof("payload")
        seen.first = seen.first or kind
        if kind == "task":
            seen.task, seen.status = event.task.id, event.task.status
            seen.states.append(state(event.task.status))
            for artifact in event.task.artifacts:
                seen.answer = artifact.parts[0].text
        elif kind == "status_update":
            seen.status = event.status_update.status
            seen.states.append(state(event.status_update.status))
        elif kind == "artifact_update":
            text = event.artifact_update.artifact.parts[0].text
            seen.answer = seen.answer + text if event.artifact_update.append else text
        if on_event:
            await on_event(kind, seen)
    return seen


async def problem_of(attempt):
    try:
        result = await attempt
        return None if result is None else "nothing was refused"
    except Exception as error:
        return type(error).__name__


async def exchange(quell, blocking):
    normal = await collect(quell.send_message(message("normal")))
    show("normal", first=normal.first, states=normal.states, answer=normal.answer)
    found = await quell.get_task(GetTaskRequest(id=normal.task))
    show("get", state=state(found.status), answer=found.artifacts[0].parts[0].text, history=found.history[0].parts[0].text)
    context = found.context_id
    again = await collect(blocking.send_message(message("again", context_id=context)))
    second = await quell.get_task(GetTaskRequest(id=again.task))
    show("blocking", state=again.states[-1], answer=again.answer, same_context=second.context_id == context)
    ids, token, pages = [], "", 0
    while pages == 0 or token:
        page = await quell.list_tasks(ListTasksRequest(context_id=context, page_size=1, page_token=token))
        ids += [item.id for item in page.tasks]
        token, pages, total = page.next_page_token, pages + 1, page.total_size
    show("list", pages=pages, newest_first=ids == [again.task, normal.task], total=total)


async def stops(quell, blocking):
    cancelled = []

    async def cancel(kind, seen):
        if kind == "artifact_update" and not cancelled:
            cancelled.append(state((await blocking.cancel_task(CancelTaskRequest(id=seen.task))).status))

    own = await collect(quell.send_message(message("own stop")), cancel)
    errors = [await problem_of(quell.cancel_task(CancelTaskRequest(id=task))) for task in (own.task, "unknown")]
    context = (await quell.get_task(GetTaskRequest(id=own.task))).context_id
    text = own.status.message.parts[0].text
    show("own stop", cancelled=cancelled, states=own.states, errors=errors, message=text, run=ask("GET", f"/api/runs/{own.task}"))
    after = await collect(blocking.send_message(message("go on", context_id=context)))
    show("after the stop", state=after.states[-1], answer=after.answer)

    async def stop(kind, seen):
        if kind == "artifact_update":
            await asyncio.to_thread(ask, "POST", f"/api/runs/{seen.task}/stop?wait=1")

    other = await collect(quell.send_message(message("other stop")), stop)
    show("other stop", states=other.states, run=ask("GET", f"/api/runs/{other.task}"))


async def lost_connection(quell):
    before = Seen()

    async def announce(kind, seen):
        if kind == "artifact_update":
            show("streaming")

    problem = await problem_of(collect(quell.send_message(message("lost")), announce, before))
    _, again = await connect("QUELL_TEST_WRITER")
    opened = []

    async def open_gate(kind, seen):
        if kind == "artifact_update" and not opened:
            opened.append(kind)
            show("resubscribed")

    after = await collect(again.subscribe(SubscribeToTaskRequest(id=before.task)), open_gate)
    stored = (await again.get_task(GetTaskRequest(id=before.task))).artifacts[0].parts[0].text
    show("lost", problem=problem, first=after.first, states=after.states, answer=after.answer, stored=stored)


async def approval():
    _, writer = await connect("QUELL_TEST_WRITER", agent="/a2a/asking")
    _, approver = await connect("QUELL_TEST_APPROVER", agent="/a2a/asking")
    asked = await collect(writer.send_message(message("list the files")))
    question = MessageToDict(asked.status.message.parts[1].data)
    answered = await collect(approver.send_message(message("allow", task_id=asked.task)))
    show("approval", asked=asked.states, tool=question["tool"], states=answered.states, answer=answered.answer)


async def push(quell, blocking):
    receiver = {
        "url": os.environ["QUELL_TEST_RECEIVER"],
        "token": "mark",
        "authentication": AuthenticationInfo(scheme="Bearer", credentials="hush"),
    }
    request = message("push")
    request.configuration.task_push_notification_config.CopyFrom(TaskPushNotificationConfig(**receiver))
    task = (await collect(blocking.send_message(request))).task
    await quell.create_task_push_notification_config(TaskPushNotificationConfig(task_id=task, id="two", **receiver))
    listed = await quell.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=task))
    two = await quell.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(task_id=task, id="two"))
    await quell.delete_task_push_notification_config(DeleteTaskPushNotificationConfigRequest(task_id=task, id="two"))
    left = await quell.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=task))
    show("push", task=task, configs=len(listed.configs), url=two.url, left=len(left.configs))


async def refusals(quell, old):
    file = SendMessageRequest(message=Message(message_id="m", role=Role.ROLE_USER, parts=[Part(url="https://x.example")]))
    _, stranger = await connect("QUELL_TEST_STRANGER")
    attempts = [
        collect(quell.send_message(message("x", task_id="unknown"))),
        collect(quell.send_message(file)),
        stranger.get_task(GetTaskRequest(id=old)),
        stranger.cancel_task(CancelTaskRequest(id=old)),
        collect(quell.subscribe(SubscribeToTaskRequest(id=old))),
    ]
    show("bad input", errors=[await problem_of(attempt) for attempt in attempts])
    show("huge body", problem=await problem_of(collect(quell.send_message(message("x" * 30_000_000)))))
    show("unknown agent", problem=await problem_of(connect("QUELL_TEST_WRITER", agent="/a2a/nobody")))
    _, reader = await connect("QUELL_TEST_READER", streaming=False)
    show("no right", problem=await problem_of(collect(reader.send_message(message("not allowed")))))


async def main():
    card, quell = await connect("QUELL_TEST_WRITER")
    _, blocking = await connect("QUELL_TEST_WRITER", streaming=False)
    show("card", name=card.name, bindings=[interface.protocol_binding for interface in card.supported_interfaces])
    await exchange(quell, blocking)
    await stops(quell, blocking)
    await lost_connection(quell)
    await approval()
    await push(quell, blocking)
    old = (await quell.list_tasks(ListTasksRequest(page_size=1))).tasks[0].id
    await refusals(quell, old)


asyncio.run(main())
