//! What is out, and what of it has to arrive.

use super::*;
use crate::fake::daemon::Daemon;

#[tokio::test]
async fn a_stop_is_owed_until_its_answer_and_a_question_never() {
    let daemon = Daemon::of(vec![]).await;
    let mut errands = Errands::new(daemon.link());
    errands.start(Effect::Ask(Question::Agents));
    assert!(!errands.owes());
    errands.start(Effect::StopRun { run: RunId::parse("r1").unwrap(), force: false });
    assert!(errands.owes());
    let mut answers = Vec::new();
    while errands.owes() || answers.len() < 2 {
        let Input::Answer(answer) = errands.next().await else { panic!("only answers are on their way") };
        answers.push(answer);
    }
    assert!(answers.iter().any(|answer| matches!(answer, Answer::RunStopped { .. })), "{answers:?}");
}
