//! The places where a stop can find a run, as data.

mod mcp;

use std::time::Duration;

use quell_engine::engine::Submission;
use quell_engine::live_run::RunProgress;
use quell_protocol::ResourceKind;
use quell_protocol::api::OnBusy;
use quell_protocol::approval::Decision;
use quell_scope::Point;
use quell_testkit::{ScriptedResponse, commands, leaks, model};
use serde_json::json;
use tokio::io::AsyncReadExt;

use super::case_run::{CaseRun, CaseStepFuture, ExpectedOutcome, MessageOrigin, StopMoment, SweepCase, do_nothing};
use super::earlier_turns::{send_long_turn, send_picture_turn, wait_summarising, wait_summary_disconnected};
use super::stop_modes::{SweepStopMode, stop_run};
use crate::test_engine::{WAIT_TIMEOUT, alice, parse_run_id, submission, submission_as};

/// All cases: named places reached from outside, then every cancellation point from inside.
pub(super) fn all_cases() -> Vec<SweepCase> {
    let mut cases = before_start_cases();
    cases.extend(model_cases());
    cases.extend(tool_cases());
    cases.extend(mcp::mcp_cases());
    cases.push(hook_case());
    cases.push(steer_case());
    cases.extend(completion_cases());
    cases.extend(point_cases());
    cases
}

fn before_start_cases() -> Vec<SweepCase> {
    let before = SweepCase {
        expected: ExpectedOutcome::AbortedEarlier,
        started: false,
        ..SweepCase::new("before it was accepted", do_nothing, StopMoment::BeforeMessage)
    };
    let queued = SweepCase {
        check_after: |case_run| Box::pin(finish_first_run(case_run)),
        started: false,
        ..SweepCase::new(
            "queued",
            |case_run| Box::pin(occupy_session(case_run)),
            StopMoment::OnCondition(|case_run| Box::pin(wait_queued(case_run))),
        )
    };
    vec![before, queued]
}

fn model_cases() -> Vec<SweepCase> {
    let connecting = SweepCase {
        agent: "hole",
        ..SweepCase::new(
            "connecting",
            do_nothing,
            StopMoment::OnCondition(|case_run| Box::pin(case_run.sweep.black_hole.wait_for_connecting(1))),
        )
    };
    let headers = SweepCase {
        check_after: |case_run| Box::pin(wait_model_disconnected(case_run)),
        ..SweepCase::new(
            "waiting for headers",
            |case_run| script_model(case_run, [ScriptedResponse::SilentBeforeHeaders]),
            StopMoment::OnCondition(|case_run| Box::pin(async { drop(case_run.wait_request().await) })),
        )
    };
    let streaming = SweepCase {
        check_after: |case_run| Box::pin(wait_model_disconnected(case_run)),
        ..SweepCase::new(
            "streaming",
            |case_run| script_model(case_run, [ScriptedResponse::tokens_forever(Duration::from_millis(2))]),
            StopMoment::OnCondition(|case_run| Box::pin(wait_text(case_run))),
        )
    };
    let silent = SweepCase {
        check_after: |case_run| Box::pin(wait_model_disconnected(case_run)),
        hidden_next: &["Let me think about"],
        ..SweepCase::new(
            "silent mid-stream",
            |case_run| script_model(case_run, [ScriptedResponse::silent_mid_stream("Let me think about")]),
            StopMoment::OnCondition(|case_run| Box::pin(wait_text(case_run))),
        )
    };
    let back_off = SweepCase::new(
        "back-off sleep",
        |case_run| script_model(case_run, [ScriptedResponse::rate_limited("50")]),
        StopMoment::OnCondition(|case_run| Box::pin(wait_resource_held(case_run, ResourceKind::Timer))),
    );
    let summarising = SweepCase {
        agent: "small",
        check_after: |case_run| Box::pin(wait_summary_disconnected(case_run)),
        visible_next: &["It was a long story."],
        hidden_next: &["So far it was about"],
        ..SweepCase::new(
            "summarising older turns",
            |case_run| Box::pin(send_long_turn(case_run, ScriptedResponse::silent_mid_stream("So far it was about"))),
            StopMoment::OnCondition(|case_run| Box::pin(wait_summarising(case_run))),
        )
    };
    vec![connecting, headers, streaming, silent, back_off, summarising]
}

fn tool_cases() -> Vec<SweepCase> {
    let shell = SweepCase {
        visible_next: &["printed before the stop", "effects"],
        ..SweepCase::new(
            "tool running (shell)",
            |case_run| {
                let command =
                    format!("printf 'printed %s the stop\\n' before; {}", commands::setsid_child(&case_run.mark));
                script_model(case_run, [ScriptedResponse::tool_call("c1", "shell", &json!({"command": command}))])
            },
            StopMoment::OnCondition(|case_run| Box::pin(wait_shell_output(case_run))),
        )
    };
    let between = SweepCase {
        visible_next: &["first of the batch", "Not started"],
        hidden_next: &["second of the batch\\n"],
        ..SweepCase::new("between tools of one batch", script_batch, StopMoment::AtPoint(Point::BeforeTool, 2))
    };
    let blocking = SweepCase {
        visible_next: &["Stopped while it ran"],
        ..SweepCase::new(
            "blocking file tool running",
            |case_run| {
                let arguments = json!({"pattern": "[a-z]+[0-9]+[A-Z]+Q$", "path": "long.txt"});
                script_model(case_run, [ScriptedResponse::tool_call("c1", "search_files", &arguments)])
            },
            StopMoment::OnCondition(|case_run| Box::pin(wait_resource_held(case_run, ResourceKind::Task))),
        )
    };
    let fetching = SweepCase {
        visible_next: &["Stopped while it ran"],
        check_after: |case_run| Box::pin(wait_fetch_disconnected(case_run)),
        ..SweepCase::new(
            "fetch_url running",
            script_silent_fetch,
            StopMoment::OnCondition(|case_run| Box::pin(wait_fetch_arrived(case_run))),
        )
    };
    let agent = SweepCase {
        visible_next: &["Stopped while it ran"],
        check_after: |case_run| Box::pin(check_child_gone(case_run)),
        ..SweepCase::new(
            "another agent at work",
            script_spawn,
            StopMoment::OnCondition(|case_run| Box::pin(wait_child_running(case_run))),
        )
    };
    let approval = SweepCase {
        agent: "asking",
        visible_next: &["Not started"],
        check_after: |case_run| Box::pin(check_late_approval(case_run)),
        ..SweepCase::new(
            "pending approval",
            script_approval,
            StopMoment::OnCondition(|case_run| Box::pin(wait_resource_held(case_run, ResourceKind::Approval))),
        )
    };
    let background = SweepCase {
        visible_next: &["Started in the background"],
        check_after: |case_run| Box::pin(check_background_gone(case_run)),
        ..SweepCase::new(
            "background process",
            script_background,
            StopMoment::OnCondition(|case_run| Box::pin(wait_background_running(case_run))),
        )
    };
    vec![shell, between, blocking, fetching, agent, approval, background]
}

/// A run that waits for a hook that hangs.
fn hook_case() -> SweepCase {
    SweepCase::new(
        "a hook that hangs",
        do_nothing,
        StopMoment::OnCondition(|case_run| Box::pin(wait_resource_held(case_run, ResourceKind::Process))),
    )
}

/// A message that steers a run is covered by a stop from the step in which the run receives it.
fn steer_case() -> SweepCase {
    SweepCase {
        visible_next: &["turn left at the corner"],
        ..SweepCase::new(
            "a steered message was taken",
            |case_run| {
                let call = model::ScriptedStream::new().wait_for_gate(case_run.run.as_str()).tool_call(
                    "c1",
                    "shell",
                    &json!({"command": "true"}),
                );
                script_model(case_run, [call.into(), ScriptedResponse::silent_mid_stream("I turn.")])
            },
            StopMoment::OnCondition(|case_run| Box::pin(steer_and_wait(case_run))),
        )
    }
}

fn completion_cases() -> Vec<SweepCase> {
    let writing = |name, expected, moment| SweepCase {
        expected,
        check_after: |case_run| Box::pin(async { unlock_database(case_run) }),
        ..SweepCase::new(
            name,
            |case_run| script_model(case_run, [gated_answer(case_run)]),
            StopMoment::OnCondition(moment),
        )
    };
    vec![
        writing("writing history, completed", ExpectedOutcome::Completed, |case_run| {
            Box::pin(wait_completed_unwritten(case_run))
        }),
        writing("writing history, stopped before", ExpectedOutcome::AbortedEarlier, |case_run| {
            Box::pin(stop_unwritten(case_run))
        }),
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
        let name = format!("at {point:?} {nth}");
        match point {
            // Before the first summary, and right after it.
            Point::Compaction => SweepCase {
                agent: "small",
                visible_next: &["It was a long story."],
                ..SweepCase::new(
                    &name,
                    |case_run| Box::pin(send_long_turn(case_run, ScriptedResponse::text("A story."))),
                    StopMoment::AtPoint(point, nth),
                )
            },
            Point::Pictures => SweepCase {
                agent: "seeing",
                ..SweepCase::new(
                    &name,
                    |case_run| Box::pin(send_picture_turn(case_run)),
                    StopMoment::AtPoint(point, nth),
                )
            },
            Point::KeepPictures => SweepCase::new(&name, script_picture, StopMoment::AtPoint(point, nth)),
            Point::Skills => SweepCase {
                agent: "skilled",
                ..SweepCase::new(&name, script_short_answer, StopMoment::AtPoint(point, nth))
            },
            Point::Attachments | Point::Delivery => SweepCase {
                origin: MessageOrigin::Channel,
                ..SweepCase::new(&name, script_short_answer, StopMoment::AtPoint(point, nth))
            },
            Point::ProcessWait => SweepCase::new(&name, script_process_wait, StopMoment::AtPoint(point, nth)),
            Point::Approval => {
                SweepCase { agent: "asking", ..SweepCase::new(&name, script_approval, StopMoment::AtPoint(point, nth)) }
            }
            _ => SweepCase::new(&name, script_everything, StopMoment::AtPoint(point, nth)),
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

fn script_short_answer<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    script_model(case_run, [ScriptedResponse::text("Here it is.")])
}

fn script_everything<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let batch = model::ScriptedStream::new()
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

fn script_picture<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    script_model(case_run, [ScriptedResponse::tool_call("c1", "test__picture", &json!({"text": "a dot"}))])
}

fn script_batch<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let batch = model::ScriptedStream::new()
        .tool_call("c1", "shell", &json!({"command": "printf 'first of the %s\\n' batch"}))
        .tool_call("c2", "shell", &json!({"command": "printf 'second of the %s\\n' batch"}));
    script_model(case_run, [batch.into()])
}

fn script_silent_fetch<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let url = format!("http://{}/never", case_run.sweep.silent_listener.local_addr().unwrap());
    script_model(case_run, [ScriptedResponse::tool_call("c1", "fetch_url", &json!({"url": url}))])
}

fn script_spawn<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let child = format!("of-{}", case_run.run);
    let command = format!("echo in the child; {}", commands::setsid_child(&case_run.mark));
    case_run.sweep.script_run(&child, [ScriptedResponse::tool_call("s1", "shell", &json!({"command": command}))]);
    let arguments = json!({"agent": "main", "prompt": format!("help marker:{child}")});
    script_model(case_run, [ScriptedResponse::tool_call("c1", "spawn_agent", &arguments)])
}

fn script_approval<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let command = json!({"command": commands::setsid_child(&case_run.mark)});
    script_model(case_run, [ScriptedResponse::tool_call("c1", "shell", &command)])
}

fn script_background<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let command = json!({"command": commands::setsid_child(&case_run.mark), "background": true});
    let start = ScriptedResponse::tool_call("c1", "shell", &command);
    script_model(case_run, [start, ScriptedResponse::silent_mid_stream("I wait.")])
}

fn script_process_wait<'a>(case_run: &'a CaseRun<'a>) -> CaseStepFuture<'a> {
    let command = json!({"command": commands::setsid_child(&case_run.mark), "background": true});
    let batch = model::ScriptedStream::new().tool_call("c1", "shell", &command).tool_call(
        "c2",
        "process",
        &json!({"action": "wait", "timeout_s": 600}),
    );
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

async fn check_late_approval(case_run: &CaseRun<'_>) {
    let engine = &case_run.sweep.test_engine.engine;
    assert!(engine.pending_approvals().is_empty(), "{:?}", engine.pending_approvals());
    let view = case_run.sweep.test_engine.wait_ended(&case_run.run).await;
    let row = view.receipt.unwrap().resources.into_iter().find(|row| row.kind == ResourceKind::Approval).unwrap();
    let id = row.label.rsplit(' ').next().unwrap();
    let late = engine.answer_approval(&alice(), id, Decision::Allow).unwrap_err();
    assert!(late.to_string().contains("was settled before (cancelled)"), "{late}");
    assert_eq!(row.how, "cancelled");
}

async fn wait_child_running(case_run: &CaseRun<'_>) {
    case_run.mark.wait_for_count(2).await;
    wait_resource_held(case_run, ResourceKind::Run).await;
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
    model::ScriptedStream::new().text("Here is ").wait_for_gate(case_run.run.as_str()).text("the answer.").into()
}

impl CaseRun<'_> {
    pub(super) async fn wait_request(&self) -> model::ModelRequestHandle {
        self.sweep.test_engine.model.wait_for_marked_request(self.run.as_str()).await
    }

    fn first_run_id(&self) -> quell_protocol::RunId {
        parse_run_id(&format!("first-of-{}", self.run))
    }
}

async fn occupy_session(case_run: &CaseRun<'_>) {
    let (test_engine, first) = (&case_run.sweep.test_engine, case_run.first_run_id());
    case_run.sweep.script_run(first.as_str(), [gated_answer(case_run)]);
    test_engine.send(submission_as(&first, &case_run.session, &format!("first marker:{first}"))).await;
    test_engine.model.wait_for_marked_request(first.as_str()).await.wait_paused().await;
}

async fn wait_queued(case_run: &CaseRun<'_>) {
    let (engine, run) = (case_run.sweep.test_engine.engine.clone(), case_run.run.clone());
    leaks::wait_until(WAIT_TIMEOUT, move || match engine.live_run(&run).map(|live_run| live_run.progress()) {
        Some(RunProgress::Durable) => Ok(()),
        other => Err(format!("run {run} is {other:?}")),
    })
    .await;
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

async fn wait_resource_held(case_run: &CaseRun<'_>, kind: ResourceKind) {
    case_run.sweep.test_engine.wait_resource_held(&case_run.run, kind).await;
}

async fn wait_shell_output(case_run: &CaseRun<'_>) {
    let test_engine = &case_run.sweep.test_engine;
    case_run.mark.wait_for_count(2).await;
    test_engine.wait_printed(&case_run.run, "printed before the stop").await;
}

async fn wait_fetch_arrived(case_run: &CaseRun<'_>) {
    let (mut connection, _) = case_run.sweep.silent_listener.accept().await.unwrap();
    // The request was sent and now waits for an answer.
    let mut byte = [0; 3];
    connection.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"GET");
    *case_run.fetch_connection.lock().unwrap() = Some(connection);
    wait_resource_held(case_run, ResourceKind::HttpRequest).await;
}

/// The server sees the end of the connection.
async fn wait_fetch_disconnected(case_run: &CaseRun<'_>) {
    let Some(mut connection) = case_run.fetch_connection.lock().unwrap().take() else { panic!("nothing was fetched") };
    let mut rest = Vec::new();
    let read = tokio::time::timeout(WAIT_TIMEOUT, connection.read_to_end(&mut rest)).await;
    // A connection reset counts as an end, too.
    let _ = read.expect("the socket of fetch_url stays open");
}

/// Blocks all writes to the database until [`unlock_database`].
fn lock_database(case_run: &CaseRun<'_>) {
    case_run.sweep.database.lock().unwrap().lock_writes();
}

fn unlock_database(case_run: &CaseRun<'_>) {
    case_run.sweep.database.lock().unwrap().unlock_writes();
}

/// Waits until the run is completed while its turn cannot be written.
async fn wait_completed_unwritten(case_run: &CaseRun<'_>) {
    let test_engine = &case_run.sweep.test_engine;
    case_run.wait_request().await.wait_paused().await;
    lock_database(case_run);
    test_engine.model.open_gate(case_run.run.as_str());
    let Some(live_run) = test_engine.engine.live_run(&case_run.run) else { panic!("run {} is over", case_run.run) };
    live_run.wait_for_progress(RunProgress::Ending).await;
    live_run.wait_for_sealed_turn().await;
}

/// Stops the run and waits until it has released everything while its turn cannot be written.
async fn stop_unwritten(case_run: &CaseRun<'_>) {
    let test_engine = &case_run.sweep.test_engine;
    case_run.wait_request().await.wait_paused().await;
    lock_database(case_run);
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
