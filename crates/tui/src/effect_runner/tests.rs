//! Which requests count as unacknowledged.

use quell_client::test_support::daemon::ScriptedDaemon;

use super::*;

#[tokio::test]
async fn a_stop_is_owed_until_its_answer_and_a_question_never() {
    let daemon = ScriptedDaemon::with_replies(vec![]);
    let mut runner = EffectRunner::new(daemon.client());
    runner.start_effect(ChatEffect::Query(DaemonQuery::Agents));
    assert!(!runner.has_unacknowledged());
    runner.start_effect(ChatEffect::StopRun { run: RunId::parse("r1").unwrap(), force: false });
    assert!(runner.has_unacknowledged());
    let mut answers = Vec::new();
    while runner.has_unacknowledged() || answers.len() < 2 {
        let ChatInput::Response(answer) = runner.next_input().await else { panic!("only answers are on their way") };
        answers.push(answer);
    }
    assert!(answers.iter().any(|answer| matches!(answer, DaemonResponse::RunStopped { .. })), "{answers:?}");
}
