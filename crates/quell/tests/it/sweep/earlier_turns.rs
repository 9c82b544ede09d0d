//! A run that is stopped while earlier turns are prepared for the model: older turns are summarised, pictures are read.

use quell_engine::engine::Submission;
use quell_testkit::{ScriptedResponse, model};

use super::case_run::CaseRun;
use crate::test_engine::{parse_agent_id, parse_run_id, submission_as, wait_summary_request};

/// Sends a long turn that fills the small agent's window, before the run that is stopped. `then` answers the summary
/// request.
pub(super) async fn send_long_turn(case_run: &CaseRun<'_>, then: ScriptedResponse) {
    let before = format!("before-{}", case_run.run);
    case_run.sweep.script_run(
        &before,
        [ScriptedResponse::text(format!("It was a long story. {}", "And on it went. ".repeat(200)))],
    );
    let text = format!("tell me a story marker:{before}");
    case_run.sweep.test_engine.send(submission_as(&parse_run_id(&before), &case_run.session, &text)).await;
    case_run.sweep.test_engine.wait_ended(&parse_run_id(&before)).await;
    // The request of the summary carries the marker of the turn that it summarises.
    case_run.sweep.script_run(&before, [then]);
}

/// Sends a turn with a picture before the run that is stopped: every later request shows the picture.
pub(super) async fn send_picture_turn(case_run: &CaseRun<'_>) {
    let before = format!("before-{}", case_run.run);
    case_run.sweep.script_run(&before, [ScriptedResponse::text("A dot.")]);
    let picture = case_run.sweep.workdir().join("dot.png");
    let text = format!("keep this [IMAGE:{}] marker:{before}", picture.display());
    let message = submission_as(&parse_run_id(&before), &case_run.session, &text);
    case_run.sweep.test_engine.send(Submission { agent: Some(parse_agent_id("seeing")), ..message }).await;
    case_run.sweep.test_engine.wait_ended(&parse_run_id(&before)).await;
}

/// Waits for the summary request; none of its text is streamed to people.
pub(super) async fn wait_summarising(case_run: &CaseRun<'_>) {
    wait_summary_of(case_run).await.wait_paused().await;
}

pub(super) async fn wait_summary_disconnected(case_run: &CaseRun<'_>) {
    wait_summary_of(case_run).await.wait_client_left().await;
}

async fn wait_summary_of(case_run: &CaseRun<'_>) -> model::ModelRequestHandle {
    wait_summary_request(&case_run.sweep.test_engine.model, &format!("before-{}", case_run.run)).await
}
