//! A message that steers a run is covered by a stop from the step in which the run receives it.

use quell_engine::engine::Submission;
use quell_protocol::api::OnBusy;
use quell_testkit::{ScriptedResponse, model};
use serde_json::json;

use super::case_run::CaseRun;
use super::cases::{StopMoment, SweepCase, script_model, wait_text};
use crate::test_engine::submission;

pub(super) fn steer_case() -> SweepCase {
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

async fn steer_and_wait(case_run: &CaseRun<'_>) {
    let test_engine = &case_run.sweep.test_engine;
    case_run.wait_request().await.wait_paused().await;
    let steer = Submission { on_busy: OnBusy::Steer, ..submission(&case_run.session, "turn left at the corner") };
    test_engine.send_for_answer(steer).await;
    test_engine.model.open_gate(case_run.run.as_str());
    wait_text(case_run).await;
}
