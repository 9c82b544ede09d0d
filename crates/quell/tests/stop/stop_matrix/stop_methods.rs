//! The rows of the matrix: ways to stop, and how each is carried out.

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MatrixStopMethod {
    HttpRun,
    HttpSession,
    HttpAll,
    AgentAbort,
    WsRun,
    WsSession,
    WsSessionsAbort,
    StopText,
    CtrlC,
    OpenAiDisconnect,
    AnthropicDisconnect,
    ResponsesCancel,
    AcpCancel,
    /// The end of the connection of an MCP call.
    McpCancel,
    /// The message by which an MCP client with a session cancels its call.
    McpSessionCancel,
    A2aCancel,
    TimeOut,
    Budget,
    Sigterm,
    Kill9,
}

/// Timeout of runs that are stopped by it, in milliseconds: long enough to bring all runs into their states.
const RUN_TIME_MS: u64 = 20_000;

/// The id of the call that each MCP session has.
const MCP_CALL: i64 = 1;

impl MatrixStopMethod {
    pub(super) fn stops_all_at_once(self) -> bool {
        matches!(self, Self::HttpAll | Self::TimeOut | Self::Sigterm | Self::Kill9)
    }

    /// True when it stops a run but not its session.
    pub(super) fn stops_one_run(self) -> bool {
        matches!(
            self,
            Self::HttpRun
                | Self::AgentAbort
                | Self::WsRun
                | Self::CtrlC
                | Self::OpenAiDisconnect
                | Self::AnthropicDisconnect
                | Self::ResponsesCancel
                | Self::AcpCancel
                | Self::McpCancel
                | Self::McpSessionCancel
                | Self::A2aCancel
                | Self::TimeOut
                | Self::Budget
        )
    }

    /// The reason in the verdict, as on the wire.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::StopText => "command",
            Self::OpenAiDisconnect | Self::AnthropicDisconnect | Self::McpCancel => "disconnect",
            Self::McpSessionCancel => "enough",
            Self::TimeOut => "timeout",
            Self::Budget => "max_steps",
            Self::Sigterm => "shutdown",
            Self::Kill9 => "daemon_stopped",
            _ => "user",
        }
    }
}

fn new_state_run(method: MatrixStopMethod, state: &StoppableState) -> StateRun {
    let name = format!("{method:?}-{}", state.agent());
    let (run, marker) = (name.clone(), name.clone());
    StateRun {
        run,
        marker,
        session: name,
        marks: Vec::new(),
        blocking_run: None,
        client: None,
        api_request: None,
        prompt: None,
        mcp_call: None,
        mcp_session: None,
    }
}

/// Sends the message of a state and waits until the state is reached.
pub(super) async fn start_in_state(
    fixture: &StopMatrixDaemon,
    state: &StoppableState,
    method: MatrixStopMethod,
) -> StateRun {
    let mut state_run = new_state_run(method, state);
    state.prepare(fixture, &mut state_run).await;
    match method {
        MatrixStopMethod::CtrlC => send_by_client(fixture, state, &mut state_run).await,
        MatrixStopMethod::ResponsesCancel => send_by_responses_api(fixture, state, &mut state_run).await,
        MatrixStopMethod::OpenAiDisconnect => {
            send_by_model_api(fixture, state, &mut state_run, "/v1/chat/completions").await;
        }
        MatrixStopMethod::AnthropicDisconnect => {
            send_by_model_api(fixture, state, &mut state_run, "/v1/messages").await;
        }
        MatrixStopMethod::AcpCancel => send_by_editor(fixture, state, &mut state_run).await,
        MatrixStopMethod::McpCancel | MatrixStopMethod::McpSessionCancel => {
            send_by_mcp(fixture, state, method, &mut state_run).await;
        }
        MatrixStopMethod::A2aCancel => send_by_a2a(fixture, state, &mut state_run).await,
        MatrixStopMethod::TimeOut => send_message(fixture, state, &state_run, &json!(RUN_TIME_MS)).await,
        _ if state.name == FIRED => fire_message(fixture, state, &mut state_run).await,
        _ => send_message(fixture, state, &state_run, &Value::Null).await,
    }
    state.wait_reached(fixture, &state_run).await;
    state_run
}

/// Brings a run into this state with its work in the background; the run continues with a further step once the gate
/// named like its id opens.
pub(super) async fn start_background_state(fixture: &StopMatrixDaemon, state: &StoppableState) -> StateRun {
    let mut state_run = new_state_run(MatrixStopMethod::Budget, state);
    let mark = ProcessMarker::new();
    let command = commands::setsid_child(&mark);
    let first = if state.name == "sub-agent" {
        let below = format!("below-{}", state_run.marker);
        fixture.scripts.script(&below, [shell_call(command)]);
        tool_call("spawn_agent", &json!({"agent": "scout", "prompt": format!("look marker:{below}"), "wait": false}))
    } else {
        background_call(command)
    };
    let second =
        ScriptedStream::new().text("on").wait_for_gate(&state_run.run).tool_call("c2", "list_files", &json!({}));
    fixture.scripts.script(&state_run.marker, [first, second.into()]);
    state_run.marks.push(mark);
    send_message(fixture, state, &state_run, &Value::Null).await;
    wait_processes(&state_run, 2).await;
    wait_second_request(fixture, &state_run).await.wait_paused().await;
    state_run
}

async fn send_message(fixture: &StopMatrixDaemon, state: &StoppableState, state_run: &StateRun, timeout: &Value) {
    let mut body = json!({"text": prompt_text(state_run), "agent": state.agent(), "idempotencyKey": state_run.run});
    if !timeout.is_null() {
        body["timeoutMs"] = timeout.clone();
    }
    let answer = fixture.daemon.api().post_run(&state_run.session, &body).await;
    assert_eq!(answer.status, 202, "{}: {:#}", state.name, answer.body);
}

/// Has a schedule send the message, once.
async fn fire_message(fixture: &StopMatrixDaemon, state: &StoppableState, state_run: &mut StateRun) {
    let (text, agent) = (prompt_text(state_run), state.agent());
    poll_until("a schedule whose time is still to come", async || {
        let at = jiff::Timestamp::now() + Duration::from_secs(1);
        let body = json!({"at": at.to_string(), "text": text, "agent": agent, "sessionKey": state_run.session});
        let answer = fixture.daemon.api().post("/api/schedules", &body).await;
        // On a busy machine the time may be over when the daemon reads it.
        let is_late = answer.status == 400 && answer.body["detail"].as_str().unwrap().contains("in the past");
        (!is_late).then(|| answer.expect_status(201))
    })
    .await;
    let run = fixture.wait_item("/api/runs?state=active", &json!({"text": text})).await;
    state_run.run = run["runId"].as_str().unwrap().to_owned();
}

fn prompt_text(state_run: &StateRun) -> String {
    format!("please marker:{}", state_run.marker)
}

/// Sends the message with `quell send`, as a person does.
async fn send_by_client(fixture: &StopMatrixDaemon, state: &StoppableState, state_run: &mut StateRun) {
    let mut command = fixture.home.command(quell_exe());
    command.args(["send", "--session", &state_run.session, "--agent", &state.agent(), &prompt_text(state_run)]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    state_run.client = Some(tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap());
    // The client chooses the run id, so find the run by its text.
    let run = fixture.wait_item("/api/runs?state=active", &json!({"text": prompt_text(state_run)})).await;
    state_run.run = run["runId"].as_str().unwrap().to_owned();
}

/// Sends the message by an MCP call, whose response stays open.
async fn send_by_mcp(
    fixture: &StopMatrixDaemon,
    state: &StoppableState,
    method: MatrixStopMethod,
    state_run: &mut StateRun,
) {
    let text = prompt_text(state_run);
    let arguments = json!({"message": text, "agent": state.agent(), "session": state_run.session});
    let call = if method == MatrixStopMethod::McpSessionCancel {
        let session = mcp_server::TestMcpSession::begin(&fixture.daemon.api()).await;
        state_run.mcp_session.insert(session).call(MCP_CALL, "run_agent", &arguments)
    } else {
        mcp_server::stateless_call(&fixture.daemon.api(), "run_agent", &arguments)
    };
    state_run.mcp_call = Some(call.send().await.unwrap());
    let run = fixture.wait_item("/api/runs?state=active", &json!({"text": text})).await;
    state_run.run = run["runId"].as_str().unwrap().to_owned();
}

/// The other agent that sends the messages of A2A.
fn a2a_client(fixture: &StopMatrixDaemon, state: &StoppableState) -> A2aTestClient {
    A2aTestClient { agent: state.agent(), ..A2aTestClient::new(&fixture.daemon.api(), A2aTestBinding::JsonRpc) }
}

/// Sends the message as another agent, which does not wait for the task.
async fn send_by_a2a(fixture: &StopMatrixDaemon, state: &StoppableState, state_run: &mut StateRun) {
    let mut params = a2a::message(&prompt_text(state_run), &json!({"contextId": state_run.session}));
    params["configuration"] = json!({"returnImmediately": true});
    let answer = a2a_client(fixture, state).call("SendMessage", &params).await.unwrap();
    state_run.run = answer["task"]["id"].as_str().unwrap().to_owned();
}

/// Sends the message as a client of a model API, which reads the stream to its end.
async fn send_by_model_api(fixture: &StopMatrixDaemon, state: &StoppableState, state_run: &mut StateRun, path: &str) {
    let text = prompt_text(state_run);
    let messages = json!([{"role": "user", "content": text}]);
    let body =
        json!({"model": format!("agent/{}", state.agent()), "max_tokens": 1000, "stream": true, "messages": messages});
    let request = fixture.daemon.api().request(Method::POST, path).json(&body);
    let request = request.header("x-quell-session", &state_run.session);
    state_run.api_request = Some(tokio::spawn(async move {
        let Ok(mut response) = request.send().await else { return };
        while let Ok(Some(_)) = response.chunk().await {}
    }));
    let run = fixture.wait_item("/api/runs?state=active", &json!({"text": text})).await;
    state_run.run = run["runId"].as_str().unwrap().to_owned();
}

/// Sends the message as a client of the Responses API, which has the response made in the background.
async fn send_by_responses_api(fixture: &StopMatrixDaemon, state: &StoppableState, state_run: &mut StateRun) {
    let body =
        json!({"model": format!("agent/{}", state.agent()), "background": true, "input": prompt_text(state_run)});
    let api = fixture.daemon.api();
    let request = api.request(Method::POST, "/v1/responses").header("x-quell-session", &state_run.session);
    let response = request.json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200, "{}", state.name);
    state_run.run = response.headers()["x-quell-run"].to_str().unwrap().to_owned();
}

/// Sends the message from an editor, over the Agent Client Protocol.
async fn send_by_editor(fixture: &StopMatrixDaemon, state: &StoppableState, state_run: &mut StateRun) {
    let (session, agent) = (percent_encode(&state_run.session), json!({"agent": state.agent()}));
    fixture.daemon.api().patch(&format!("/api/sessions/{session}"), &agent).await.expect_status(200);
    let mut editor = fixture.editor.lock().await;
    if editor.is_none() {
        *editor = Some(AcpTestClient::start(&fixture.daemon, &[]).await);
    }
    let editor = editor.as_mut().unwrap();
    let workdir = fixture.home.work_dir().join(state.agent());
    std::fs::create_dir_all(&workdir).unwrap();
    let place = json!({"sessionId": state_run.session, "cwd": workdir, "mcpServers": []});
    editor.call("session/resume", place).await.unwrap();
    let prompt = json!([{"type": "text", "text": prompt_text(state_run)}]);
    let params = json!({"sessionId": state_run.session, "prompt": prompt});
    state_run.prompt = Some(editor.begin("session/prompt", params).await);
    // The client chooses the run id, so find the run by its text.
    let run = fixture.wait_item("/api/runs?state=active", &json!({"text": prompt_text(state_run)})).await;
    state_run.run = run["runId"].as_str().unwrap().to_owned();
}

async fn cancel_in_editor(fixture: &StopMatrixDaemon, state: &StoppableState, state_run: &StateRun) {
    let mut editor = fixture.editor.lock().await;
    let editor = editor.as_mut().unwrap();
    editor.notify("session/cancel", json!({"sessionId": state_run.session})).await;
    let answer = editor.answer(state_run.prompt.unwrap()).await.unwrap();
    assert_eq!(answer["stopReason"], "cancelled", "{}: {answer:#}", state.name);
}

pub(super) async fn stop_one(
    fixture: &StopMatrixDaemon,
    method: MatrixStopMethod,
    state: &StoppableState,
    state_run: &mut StateRun,
) {
    let (http, session) = (fixture.daemon.api(), percent_encode(&state_run.session));
    match method {
        MatrixStopMethod::HttpRun => {
            let answer = http.stop_run(&state_run.run).await;
            assert_eq!(answer["aborted"], true, "{}: {answer:#}", state.name);
        }
        MatrixStopMethod::HttpSession => {
            let answer = http.post(&format!("/api/sessions/{session}/stop?wait=1"), &json!({})).await;
            assert_stopped(state, state_run, &answer.expect_status(200));
        }
        MatrixStopMethod::AgentAbort => {
            let answer = http.post(&format!("/api/agent/{}/abort?scope=run", state.agent()), &json!({})).await;
            assert_stopped(state, state_run, &answer.expect_status(200));
        }
        MatrixStopMethod::WsRun => {
            let run = json!({"sessionKey": state_run.session, "runId": state_run.run});
            chat_abort(fixture, state, state_run, run).await;
        }
        MatrixStopMethod::WsSession => {
            chat_abort(fixture, state, state_run, json!({"sessionKey": state_run.session})).await
        }
        MatrixStopMethod::WsSessionsAbort => {
            let mut client = WsTestClient::connect_to(fixture.daemon.url(), fixture.daemon.token()).await;
            let answer = client.call("sessions.abort", json!({"key": state_run.session})).await;
            assert_ne!(answer["status"], "no-active-run", "{}: {answer:#}", state.name);
        }
        MatrixStopMethod::StopText => {
            let answer = http.post_run(&session, &json!({"text": " /STOP "})).await;
            assert_stopped(state, state_run, &answer.expect_status(200));
        }
        MatrixStopMethod::CtrlC => press_ctrl_c(state, state_run).await,
        MatrixStopMethod::OpenAiDisconnect | MatrixStopMethod::AnthropicDisconnect => {
            let request = state_run.api_request.take().unwrap();
            request.abort();
            assert!(request.await.is_err_and(|end| end.is_cancelled()), "{}: the answer was over", state.name);
        }
        MatrixStopMethod::ResponsesCancel => {
            let path = format!("/v1/responses/resp_{}/cancel", state_run.run.replace('-', ""));
            let answer = http.post(&path, &json!({})).await.expect_status(200);
            assert_eq!(answer["status"], "cancelled", "{}: {answer:#}", state.name);
        }
        MatrixStopMethod::AcpCancel => cancel_in_editor(fixture, state, state_run).await,
        MatrixStopMethod::McpCancel => drop(state_run.mcp_call.take()),
        MatrixStopMethod::McpSessionCancel => state_run.mcp_session.as_ref().unwrap().cancel(MCP_CALL).await,
        MatrixStopMethod::A2aCancel => {
            let task = a2a_client(fixture, state).call("CancelTask", &json!({"id": state_run.run})).await.unwrap();
            assert_eq!(task["status"]["state"], "TASK_STATE_CANCELED", "{}: {task:#}", state.name);
        }
        _ => unreachable!("{method:?} stops all runs"),
    }
}

fn assert_stopped(state: &StoppableState, state_run: &StateRun, answer: &Value) {
    let stopped = answer["runIds"].as_array().unwrap().iter().any(|run| run == state_run.run.as_str());
    assert!(answer["aborted"] == true && stopped, "{}: {answer:#}", state.name);
}

async fn chat_abort(fixture: &StopMatrixDaemon, state: &StoppableState, state_run: &StateRun, params: Value) {
    let mut client = WsTestClient::connect_to(fixture.daemon.url(), fixture.daemon.token()).await;
    assert_stopped(state, state_run, &client.call("chat.abort", params).await);
}

async fn press_ctrl_c(state: &StoppableState, state_run: &mut StateRun) {
    let client = state_run.client.as_mut().unwrap();
    let pid = client.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).unwrap())).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let status = tokio::time::timeout(WAIT_TIMEOUT, client.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(130), "{}", state.name);
}

pub(super) async fn stop_all(fixture: &mut StopMatrixDaemon, method: MatrixStopMethod, state_runs: &[StateRun]) {
    match method {
        MatrixStopMethod::HttpAll => {
            let answer = fixture.daemon.api().post("/api/stop?wait=1", &json!({})).await.expect_status(200);
            let stopped = answer["runIds"].as_array().unwrap();
            assert!(state_runs.iter().all(|state_run| stopped.contains(&json!(state_run.run))), "{answer:#}");
        }
        // The runs end by their own timeouts.
        MatrixStopMethod::TimeOut => {}
        MatrixStopMethod::Sigterm => {
            let status = fixture.daemon.stop().await;
            assert!(status.success(), "{status:?}\n{}", fixture.daemon.output());
            fixture.daemon = fixture.home.start(quell_exe()).await;
        }
        MatrixStopMethod::Kill9 => {
            fixture.daemon.kill9().await;
            fixture.daemon = fixture.home.start(quell_exe()).await;
        }
        _ => unreachable!("{method:?} stops one run"),
    }
}
