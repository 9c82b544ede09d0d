//! The places where a stop can find a run, as data.

mod mcp_servers;

use quell_protocol::schedule::ScheduleRequest;

use super::*;
use crate::test_engine::alice;

/// All cases: named places reached from outside, then every cancellation point from inside.
pub(super) fn all_cases() -> Vec<SweepCase> {
    let mut cases = before_start_cases();
    cases.extend(model_cases());
    cases.extend(tool_cases());
    cases.extend(mcp_servers::mcp_cases());
    cases.push(SweepCase::new("a hook that hangs").when(|case_run| wait_held(case_run, ResourceKind::Process).boxed()));
    cases.push(steer_case());
    cases.extend(completion_cases());
    cases.extend(point_cases());
    cases
}

fn before_start_cases() -> Vec<SweepCase> {
    let before = SweepCase::new("before it was accepted").not_started().expect(ExpectedOutcome::AbortedEarlier);
    let queued = SweepCase::new("queued")
        .not_started()
        .prepare(|case_run| occupy_session(case_run).boxed())
        .when(|case_run| case_run.wait_progress(RunProgress::Durable).boxed())
        .check_after(|case_run| finish_first_run(case_run).boxed());
    let accepting = SweepCase::new("its acceptance waits for the database").not_started().while_accepted();
    vec![before, accepting, queued]
}

fn model_cases() -> Vec<SweepCase> {
    vec![
        SweepCase::new("connecting")
            .agent("hole")
            .when(|case_run| case_run.sweep.black_hole.wait_for_connecting(1).boxed()),
        SweepCase::new("waiting for headers")
            .prepare(|case_run| script_model(case_run, [ScriptedResponse::SilentBeforeHeaders]))
            .when(|case_run| case_run.wait_request().map(drop).boxed())
            .check_after(|case_run| wait_model_disconnected(case_run).boxed()),
        SweepCase::new("streaming")
            .prepare(|case_run| script_model(case_run, [ScriptedResponse::tokens_forever(Duration::from_millis(2))]))
            .when(|case_run| wait_text(case_run).boxed())
            .check_after(|case_run| wait_model_disconnected(case_run).boxed()),
        SweepCase::new("silent mid-stream")
            .prepare(|case_run| script_model(case_run, [ScriptedResponse::silent_mid_stream("Let me think about")]))
            .when(|case_run| wait_text(case_run).boxed())
            .check_after(|case_run| wait_model_disconnected(case_run).boxed())
            .hides(&["Let me think about"]),
        SweepCase::new("back-off sleep")
            .prepare(|case_run| script_model(case_run, [ScriptedResponse::rate_limited("50")]))
            .when(|case_run| wait_held(case_run, ResourceKind::Timer).boxed()),
        SweepCase::new("the second model of a chain streams")
            .agent("chained")
            .prepare(|case_run| {
                let silent = ScriptedResponse::silent_mid_stream("Let me see about");
                script_model(case_run, [out_of_credit(), silent])
            })
            .when(|case_run| wait_text(case_run).boxed())
            .hides(&["Let me see about"]),
        summarising_case("summarising older turns").agent("small"),
        summarising_case("summarising on request").work(|| RunWork::Compact),
        // Before the thread that writes the file, and while it is at work.
        SweepCase::new("before a file of the message is written").work(work_with_file).at(Point::Attachments, 1),
        SweepCase::new("a file of the message is written").work(work_with_file).at(Point::Attachments, 2),
    ]
}

/// A run whose summary of an earlier turn has begun.
fn summarising_case(name: &str) -> SweepCase {
    SweepCase::new(name)
        .prepare(|case_run| {
            send_long_turn(case_run, ScriptedResponse::silent_mid_stream("So far it was about")).boxed()
        })
        .when(|case_run| wait_summarising(case_run).boxed())
        .check_after(|case_run| wait_summary_disconnected(case_run).boxed())
        .shows(&["It was a long story."])
        .hides(&["So far it was about"])
}

fn work_with_file() -> RunWork {
    let file = MessageFile { name: Some("a.txt".to_owned()), kind: MessageFileKind::Other, bytes: b"a".to_vec() };
    RunWork::Answer { files: [file].into() }
}

fn tool_cases() -> Vec<SweepCase> {
    vec![
        SweepCase::new("tool running (shell)")
            .prepare(script_printing_shell)
            .when(|case_run| wait_shell_output(case_run).boxed())
            .shows(&["printed before the stop", "effects"]),
        SweepCase::new("between tools of one batch")
            .prepare(script_batch)
            .at(Point::BeforeTool, 2)
            .shows(&["first of the batch", "Not started"])
            .hides(&["second of the batch\\n"]),
        SweepCase::new("several calls at the same time, and one that waits for them")
            .prepare(script_parallel_calls)
            .when(|case_run| wait_parallel_calls(case_run).boxed())
            .check_after(|case_run| check_parallel_calls_gone(case_run).boxed())
            .shows(&["Stopped while it ran", "Not started"])
            .hides(&["after all others\\n"]),
        SweepCase::new("blocking file tool running")
            .prepare(script_long_search)
            .when(|case_run| wait_searching(case_run).boxed())
            .shows(&["Stopped while it ran"]),
        // The thread that plans the write, the one that writes, and both while they are at work.
        SweepCase::new("before a write is planned").prepare(script_write).at(Point::Blocking, 1),
        SweepCase::new("a write is planned").prepare(script_write).at(Point::Blocking, 2),
        SweepCase::new("before a file is written").prepare(script_write).at(Point::Blocking, 3),
        SweepCase::new("a file is written").prepare(script_write).at(Point::Blocking, 4),
        SweepCase::new("fetch_url running")
            .prepare(script_silent_fetch)
            .when(|case_run| wait_fetch_arrived(case_run).boxed())
            .check_after(|case_run| wait_fetch_disconnected(case_run).boxed())
            .shows(&["Stopped while it ran"]),
        SweepCase::new("command in a transfer through the proxy of its network list")
            .agent("listed")
            .prepare(script_proxied_request)
            .when(|case_run| wait_proxied_request(case_run).boxed())
            .check_after(|case_run| wait_fetch_disconnected(case_run).boxed())
            .shows(&["effects"]),
        SweepCase::new("another agent at work")
            .prepare(script_spawn)
            .when(|case_run| wait_child_running(case_run).boxed())
            .check_after(|case_run| check_child_gone(case_run).boxed())
            .shows(&["Stopped while it ran"]),
        SweepCase::new("pending approval")
            .agent("asking")
            .prepare(script_setsid_child)
            .when(|case_run| wait_pending_approval(case_run).boxed())
            .check_after(|case_run| check_late_approval(case_run).boxed())
            .shows(&["Not started"]),
        SweepCase::new("pending request to leave the sandbox")
            .prepare(script_escalation)
            .when(|case_run| wait_pending_approval(case_run).boxed())
            .check_after(|case_run| check_late_approval(case_run).boxed())
            .shows(&["Not started"]),
        SweepCase::new("making a schedule")
            .prepare(|case_run| script_call(case_run, "cron_add", &json!({"text": "look again", "every": "1h"})))
            .at(Point::Schedules, 1)
            .check_after(|case_run| check_schedule_paused(case_run).boxed())
            .shows(&["Stopped while it ran"]),
        SweepCase::new("listing schedules")
            .prepare(|case_run| script_call(case_run, "cron_list", &json!({})))
            .at(Point::Schedules, 1)
            .shows(&["Stopped while it ran"]),
        SweepCase::new("deleting a schedule")
            .prepare(|case_run| script_schedule_removal(case_run).boxed())
            .at(Point::Schedules, 1)
            .shows(&["Stopped while it ran"]),
        SweepCase::new("background process")
            .prepare(script_background)
            .when(|case_run| wait_background_running(case_run).boxed())
            .check_after(|case_run| check_background_gone(case_run).boxed())
            .shows(&["Started in the background"]),
    ]
}

/// A message that steers a run is covered by a stop from the step in which the run receives it.
fn steer_case() -> SweepCase {
    SweepCase::new("a steered message was taken")
        .prepare(|case_run| {
            let gated = ScriptedStream::new().wait_for_gate(case_run.run.as_str());
            let call = gated.tool_call("c1", "shell", &json!({"command": "true"}));
            script_model(case_run, [call.into(), ScriptedResponse::silent_mid_stream("I turn.")])
        })
        .when(|case_run| steer_and_wait(case_run).boxed())
        .shows(&["turn left at the corner"])
}

fn completion_cases() -> Vec<SweepCase> {
    let writing = |name| {
        SweepCase::new(name)
            .prepare(|case_run| script_model(case_run, [gated_answer(case_run)]))
            .check_after(|case_run| async { case_run.unlock_database() }.boxed())
    };
    vec![
        writing("writing history, completed")
            .when(|case_run| wait_completed_unwritten(case_run).boxed())
            .expect(ExpectedOutcome::Completed),
        writing("writing history, stopped before")
            .when(|case_run| stop_unwritten(case_run).boxed())
            .expect(ExpectedOutcome::AbortedEarlier),
    ]
}

/// A stop at every point, in a run that fails once, then uses a shell, a file, a page, another agent, an MCP server and
/// its memory in one batch, and then answers.
fn point_cases() -> Vec<SweepCase> {
    let nth = |point: &Point| match point {
        // Once at the start, and once while its thread is at work.
        Point::Blocking | Point::Pictures | Point::KeepPictures | Point::Skills => vec![1, 2],
        Point::ModelStream | Point::ProcessWait | Point::Compaction => vec![1, 2],
        // The second time belongs to the other agent.
        Point::BeforeStep | Point::ContextBuilt | Point::AfterModel => vec![1, 2, 3],
        // The first process belongs to the hook.
        Point::ModelSend | Point::AfterTool | Point::Process => vec![1, 2],
        Point::BeforeTool => vec![1, 3],
        // Before the first step and by the tool; the other agent's recall is in between.
        Point::Recall => vec![1, 3],
        _ => vec![1],
    };
    let case = |(point, nth): (Point, u32)| {
        let case = SweepCase::new(&format!("at {point:?} {nth}")).at(point, nth);
        match point {
            // Before the first summary, and right after it.
            Point::Compaction => case
                .agent("small")
                .prepare(|case_run| send_long_turn(case_run, ScriptedResponse::text("A story.")).boxed())
                .shows(&["It was a long story."]),
            Point::Pictures => case.agent("seeing").prepare(|case_run| send_picture_turn(case_run).boxed()),
            Point::KeepPictures => case.prepare(|run| script_call(run, "test__picture", &json!({"text": "a dot"}))),
            Point::ModelFallback => case
                .agent("chained")
                .prepare(|case_run| script_model(case_run, [out_of_credit(), ScriptedResponse::text("Here it is.")])),
            Point::Skills => case.agent("skilled").prepare(script_short_answer),
            Point::Attachments | Point::Transcription | Point::Speech | Point::Delivery => {
                case.sent_by_channel().prepare(script_short_answer)
            }
            Point::ProcessWait => case.prepare(script_process_wait),
            Point::WorkdirLock | Point::FileBackup => case.prepare(script_write),
            Point::Approval => case.agent("asking").prepare(script_setsid_child),
            Point::Schedules => case.prepare(|run| script_call(run, "cron_list", &json!({}))),
            _ => case.prepare(script_everything),
        }
    };
    swept_points().flat_map(|point| nth(point).into_iter().map(|nth| (*point, nth))).map(case).collect()
}

/// The points that a run reaches. `memory/consolidation` tests the point of the background task that follows a run.
pub(super) fn swept_points() -> impl Iterator<Item = &'static Point> {
    Point::ALL.iter().filter(|point| **point != Point::Consolidation)
}

fn script_model<'a>(
    case_run: &'a CaseRun<'a>,
    answers: impl IntoIterator<Item = ScriptedResponse>,
) -> CaseStepFuture<'a> {
    case_run.sweep.script_run(case_run.run.as_str(), answers);
    do_nothing(case_run)
}

/// A failure after which another model of the chain is asked at once.
fn out_of_credit() -> ScriptedResponse {
    ScriptedResponse::status(402)
}

fn script_short_answer<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    script_model(case_run, [ScriptedResponse::text("Here it is.")])
}

fn script_everything<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let batch = ScriptedStream::new()
        .text("I will look.")
        .tool_call("c1", "shell", &json!({"command": format!("echo one; : {}", case_run.mark.as_str())}))
        .tool_call("c2", "read_file", &json!({"path": "short.txt"}))
        .tool_call("c3", "fetch_url", &json!({"url": case_run.sweep.page_url}))
        .tool_call("c4", "spawn_agent", &json!({"agent": "main", "prompt": "help me"}))
        .tool_call("c5", "test__echo", &json!({"text": "hello"}))
        .tool_call("c6", "remember", &json!({"text": "The fence is green.", "key": "fence"}))
        .tool_call("c7", "recall", &json!({"query": "fence"}));
    script_model(case_run, [ScriptedResponse::rate_limited("0"), batch.into()])
}

pub(super) fn script_call<'a>(case_run: &'a CaseRun<'a>, tool: &str, arguments: &Value) -> CaseStepFuture<'a> {
    script_model(case_run, [ScriptedResponse::tool_call("c1", tool, arguments)])
}

fn script_write<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    script_call(case_run, "write_file", &json!({"path": "written.txt", "content": "new"}))
}

fn script_printing_shell<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let child = commands::setsid_child(&case_run.mark);
    let command = format!("printf 'printed %s the stop\\n' before; {child}");
    script_call(case_run, "shell", &json!({"command": command}))
}

fn script_long_search<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    script_call(case_run, "search_files", &json!({"pattern": "[a-z]+[0-9]+[A-Z]+Q$", "path": "long.txt"}))
}

fn script_batch<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let batch = ScriptedStream::new()
        .tool_call("c1", "shell", &json!({"command": "printf 'first of the %s\\n' batch"}))
        .tool_call("c2", "shell", &json!({"command": "printf 'second of the %s\\n' batch"}));
    script_model(case_run, [batch.into()])
}

fn script_silent_fetch<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let url = format!("http://{}/never", case_run.sweep.silent_listener.local_addr().unwrap());
    script_call(case_run, "fetch_url", &json!({"url": url}))
}

/// A page, a search and a sub-run at the same time; a command waits for them.
fn script_parallel_calls<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let child = format!("of-{}", case_run.run);
    case_run.sweep.script_run(&child, [shell_call(commands::setsid_child(&case_run.mark))]);
    let url = format!("http://{}/never", case_run.sweep.silent_listener.local_addr().unwrap());
    let calls = ScriptedStream::new()
        .tool_call("c1", "fetch_url", &json!({"url": url}))
        .tool_call("c2", "search_files", &json!({"pattern": "[a-z]+[0-9]+[A-Z]+Q$", "path": "long.txt"}))
        .tool_call("c3", "spawn_agent", &json!({"agent": "main", "prompt": format!("help marker:{child}")}))
        .tool_call("c4", "shell", &json!({"command": "printf 'after all %s\\n' others"}));
    script_model(case_run, [calls.into()])
}

fn script_proxied_request<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let server = case_run.sweep.silent_listener.local_addr().unwrap();
    let request = format!("GET http://{server}/never HTTP/1.1\\r\\nHost: {server}\\r\\n\\r\\n");
    let command = format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/3128; printf \"{request}\" >&3; cat <&3; sleep 600'");
    script_model(case_run, [shell_call(command)])
}

fn script_spawn<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let child = format!("of-{}", case_run.run);
    let command = format!("echo in the child; {}", commands::setsid_child(&case_run.mark));
    case_run.sweep.script_run(&child, [shell_call(command)]);
    script_call(case_run, "spawn_agent", &json!({"agent": "main", "prompt": format!("help marker:{child}")}))
}

fn script_setsid_child<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    script_model(case_run, [shell_call(commands::setsid_child(&case_run.mark))])
}

fn script_escalation<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let command = commands::setsid_child(&case_run.mark);
    script_call(case_run, "shell", &json!({"command": command, "escalate": "it has to leave the sandbox"}))
}

fn script_background<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let start = background_call(commands::setsid_child(&case_run.mark));
    script_model(case_run, [start, ScriptedResponse::silent_mid_stream("I wait.")])
}

fn script_process_wait<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let command = json!({"command": commands::setsid_child(&case_run.mark), "background": true});
    let (start, wait) = (ScriptedStream::new(), json!({"action": "wait", "timeout_s": 600}));
    let batch = start.tool_call("c1", "shell", &command).tool_call("c2", "process", &wait);
    script_model(case_run, [batch.into()])
}

async fn wait_background_running(case_run: &CaseRun<'_>) {
    case_run.mark.wait_for_count(2).await;
    wait_text(case_run).await;
}

async fn check_background_gone(case_run: &CaseRun<'_>) {
    let view = case_run.sweep.test_engine.wait_ended(&case_run.run).await;
    case_run.mark.wait_gone(WAIT_TIMEOUT).await;
    let rows = view.receipt.unwrap().resources;
    let row = rows.iter().rfind(|row| row.kind == ResourceKind::Process).unwrap();
    assert_ne!(row.process.as_ref().unwrap().pid, 0, "{row:#?}");
    assert!(matches!(row.how.as_str(), "term" | "kill"), "{row:#?}");
}

/// The schedule that the run was making is stored all the same, and paused.
async fn check_schedule_paused(case_run: &CaseRun<'_>) {
    let engine = &case_run.sweep.test_engine.engine;
    let stored = async {
        loop {
            let listed = engine.list_schedules(&root()).await.unwrap();
            let made = listed.into_iter().find(|view| view.created_by_run.as_ref() == Some(&case_run.run));
            match made.filter(|_| !engine.schedules().has_unstored_pauses()) {
                Some(made) => break made,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let made = tokio::time::timeout(WAIT_TIMEOUT, stored).await.expect("the schedule is stored with its pause");
    assert!(made.paused.is_some(), "{made:#?}");
    assert!(engine.delete_schedule(&root(), &made.id).await.unwrap());
}

/// The run deletes a schedule of its own principal.
async fn script_schedule_removal(case_run: &CaseRun<'_>) {
    let engine = &case_run.sweep.test_engine.engine;
    let request = ScheduleRequest { every: Some("1h".into()), text: "look again".into(), ..ScheduleRequest::default() };
    let made = engine.create_schedule(&alice(), request).await.unwrap();
    script_call(case_run, "cron_remove", &json!({"id": made.id})).await;
}

async fn wait_pending_approval(case_run: &CaseRun<'_>) {
    case_run.sweep.test_engine.wait_approval_of(&case_run.run).await;
}

async fn check_late_approval(case_run: &CaseRun<'_>) {
    let engine = &case_run.sweep.test_engine.engine;
    assert!(engine.pending_approvals().is_empty(), "{:?}", engine.pending_approvals());
    let view = case_run.sweep.test_engine.wait_ended(&case_run.run).await;
    let row = view.receipt.unwrap().resources.into_iter().find(|row| row.kind == ResourceKind::Approval).unwrap();
    let id = row.label.rsplit(' ').next().unwrap();
    let late = engine.answer_approval(&bob(), id, Decision::Allow.into()).unwrap_err();
    assert!(late.to_string().contains("was settled before (cancelled)"), "{late}");
    assert_eq!(row.how, "cancelled");
}

async fn wait_child_running(case_run: &CaseRun<'_>) {
    case_run.mark.wait_for_count(2).await;
    wait_held(case_run, ResourceKind::Run).await;
}

async fn wait_parallel_calls(case_run: &CaseRun<'_>) {
    wait_fetch_arrived(case_run).await;
    wait_child_running(case_run).await;
}

async fn check_parallel_calls_gone(case_run: &CaseRun<'_>) {
    wait_fetch_disconnected(case_run).await;
    check_child_gone(case_run).await;
}

async fn check_child_gone(case_run: &CaseRun<'_>) {
    let engine = &case_run.sweep.test_engine.engine;
    case_run.mark.wait_gone(WAIT_TIMEOUT).await;
    let live_run = engine.live_run(&case_run.run);
    let below = |rows: Vec<quell_scope::LedgerRow>| rows.iter().filter(|row| row.kind == ResourceKind::Run).count();
    assert!(live_run.is_none_or(|live_run| below(live_run.scope.ledger().rows()) == 1));
}

/// An answer that ends when the test opens its gate.
fn gated_answer(case_run: &CaseRun<'_>) -> ScriptedResponse {
    ScriptedStream::new().text("Here is ").wait_for_gate(case_run.run.as_str()).text("the answer.").into()
}

impl CaseRun<'_> {
    pub(super) async fn wait_request(&self) -> ModelRequestHandle {
        self.sweep.test_engine.model.wait_for_marked_request(self.run.as_str()).await
    }

    fn first_run_id(&self) -> RunId {
        parse_run_id(&format!("first-of-{}", self.run))
    }
}

async fn occupy_session(case_run: &CaseRun<'_>) {
    let (test_engine, first) = (&case_run.sweep.test_engine, case_run.first_run_id());
    case_run.sweep.script_run(first.as_str(), [gated_answer(case_run)]);
    test_engine.send(submission_as(&first, &case_run.session, &format!("first marker:{first}"))).await;
    test_engine.model.wait_for_marked_request(first.as_str()).await.wait_paused().await;
}

/// The run ahead of it continues undisturbed.
async fn finish_first_run(case_run: &CaseRun<'_>) {
    case_run.sweep.test_engine.model.open_gate(case_run.run.as_str());
    let view = case_run.sweep.test_engine.wait_ended(&case_run.first_run_id()).await;
    assert_eq!(view.output.as_deref(), Some("Here is the answer."));
}

async fn wait_text(case_run: &CaseRun<'_>) {
    case_run.wait_request().await.wait_streaming().await;
    case_run.sweep.test_engine.wait_text(&case_run.run).await;
}

async fn wait_model_disconnected(case_run: &CaseRun<'_>) {
    case_run.wait_request().await.wait_client_left().await;
}

async fn wait_held(case_run: &CaseRun<'_>, kind: ResourceKind) {
    case_run.sweep.test_engine.wait_resource_held(&case_run.run, kind).await;
}

/// Waits for the thread of the tool. A run holds other ones before its first step.
async fn wait_searching(case_run: &CaseRun<'_>) {
    let test_engine = &case_run.sweep.test_engine;
    test_engine.wait_held(&case_run.run, ResourceKind::Task, "search_files").await;
}

async fn wait_shell_output(case_run: &CaseRun<'_>) {
    let test_engine = &case_run.sweep.test_engine;
    case_run.mark.wait_for_count(2).await;
    test_engine.wait_printed(&case_run.run, "printed before the stop").await;
}

async fn wait_fetch_arrived(case_run: &CaseRun<'_>) {
    accept_request(case_run).await;
    wait_held(case_run, ResourceKind::HttpRequest).await;
}

async fn wait_proxied_request(case_run: &CaseRun<'_>) {
    accept_request(case_run).await;
    wait_held(case_run, ResourceKind::Process).await;
}

async fn accept_request(case_run: &CaseRun<'_>) {
    let (mut connection, _) = case_run.sweep.silent_listener.accept().await.unwrap();
    // The request was sent and now waits for an answer.
    let mut byte = [0; 3];
    connection.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"GET");
    *case_run.fetch_connection.lock().unwrap() = Some(connection);
}

/// The server sees the end of the connection.
async fn wait_fetch_disconnected(case_run: &CaseRun<'_>) {
    let Some(mut connection) = case_run.fetch_connection.lock().unwrap().take() else { panic!("nothing was fetched") };
    let mut rest = Vec::new();
    let read = tokio::time::timeout(WAIT_TIMEOUT, connection.read_to_end(&mut rest)).await;
    // A connection reset counts as an end, too.
    let _ = read.expect("the socket of fetch_url stays open");
}

/// Waits until the run is completed while its turn cannot be written.
async fn wait_completed_unwritten(case_run: &CaseRun<'_>) {
    let test_engine = &case_run.sweep.test_engine;
    case_run.wait_request().await.wait_paused().await;
    case_run.lock_database();
    test_engine.model.open_gate(case_run.run.as_str());
    let Some(live_run) = test_engine.engine.live_run(&case_run.run) else { panic!("run {} is over", case_run.run) };
    live_run.wait_for_progress(RunProgress::Ending).await;
    live_run.wait_for_sealed_turn().await;
}

/// Stops the run and waits until it has released everything while its turn cannot be written.
async fn stop_unwritten(case_run: &CaseRun<'_>) {
    let test_engine = &case_run.sweep.test_engine;
    case_run.wait_request().await.wait_paused().await;
    case_run.lock_database();
    let Some(live_run) = test_engine.engine.live_run(&case_run.run) else { panic!("run {} is over", case_run.run) };
    let first = stop_run(&test_engine.engine, &case_run.run, SweepStopMode::Gentle);
    assert_eq!(first.callers_that_stopped(&case_run.run).len(), 1);
    live_run.wait_for_sealed_turn().await;
}

async fn steer_and_wait(case_run: &CaseRun<'_>) {
    let test_engine = &case_run.sweep.test_engine;
    case_run.wait_request().await.wait_paused().await;
    let steer = Submission { on_busy: OnBusy::Steer, ..submission(&case_run.session, "turn left at the corner") };
    test_engine.send_for_answer(steer).await;
    test_engine.model.open_gate(case_run.run.as_str());
    wait_text(case_run).await;
}

/// Sends a long turn that fills the small agent's window, before the run that is stopped. `then` answers the summary
/// request.
async fn send_long_turn(case_run: &CaseRun<'_>, then: ScriptedResponse) {
    let before = format!("before-{}", case_run.run);
    case_run.sweep.script_run(
        &before,
        [ScriptedResponse::text(format!("It was a long story. {}", "And on it went. ".repeat(200)))],
    );
    let text = format!("tell me a story marker:{before}");
    let story = submission_as(&parse_run_id(&before), &case_run.session, &text);
    // The session keeps the agent that it has.
    case_run.sweep.test_engine.send(Submission { agent: None, ..story }).await;
    case_run.sweep.test_engine.wait_ended(&parse_run_id(&before)).await;
    // The request of the summary carries the marker of the turn that it summarises.
    case_run.sweep.script_run(&before, [then]);
}

/// Sends a turn with a picture before the run that is stopped: every later request shows the picture.
async fn send_picture_turn(case_run: &CaseRun<'_>) {
    let before = format!("before-{}", case_run.run);
    case_run.sweep.script_run(&before, [ScriptedResponse::text("A dot.")]);
    let picture = case_run.sweep.test_engine.workdir().join("dot.png");
    let text = format!("keep this [IMAGE:{}] marker:{before}", picture.display());
    let message = submission_as(&parse_run_id(&before), &case_run.session, &text);
    case_run.sweep.test_engine.send(Submission { agent: Some(parse_agent_id("seeing")), ..message }).await;
    case_run.sweep.test_engine.wait_ended(&parse_run_id(&before)).await;
}

/// Waits for the summary request; none of its text is streamed to people.
async fn wait_summarising(case_run: &CaseRun<'_>) {
    wait_summary_of(case_run).await.wait_paused().await;
}

async fn wait_summary_disconnected(case_run: &CaseRun<'_>) {
    wait_summary_of(case_run).await.wait_client_left().await;
}

async fn wait_summary_of(case_run: &CaseRun<'_>) -> ModelRequestHandle {
    wait_summary_request(&case_run.sweep.test_engine.model, &format!("before-{}", case_run.run)).await
}
