//! What the model is told after a stop: per call what happened to it, who stopped and why, and that the request is not to be
//! resumed; and what people and the books keep of it.

use std::time::Duration;

use quell_kernel::Push;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::{ResourceKind, RunId, StopReason, Surface};
use quell_testkit::Behaviour;
use quell_testkit::commands::{self, Marker};
use quell_testkit::model::Stream;
use rstest::rstest;
use serde_json::json;

use crate::harness::{Claim, House, agent, alice, ask, flat, message, of_run, receipt, run_id};

/// What the next request of the session shows.
async fn next_sees(house: &House) -> String {
    house.model.script(Behaviour::text("fine"));
    house.ask("s", "and now?").await;
    house.model.assert_histories_valid();
    flat(&house.last_messages())
}

fn batch(first: &str, second: &str) -> Behaviour {
    Stream::new()
        .tool_call("c1", "shell", &json!({"command": first}))
        .tool_call("c2", "shell", &json!({"command": second}))
        .into()
}

async fn stop_once_printed(house: &House, text: &str, push: Push) -> RunId {
    let run = house.send(message("s", "do it")).await;
    house.printed(&run, text).await;
    assert!(house.engine.stop(&alice(), &of_run(&run), &ask(push)).did_something());
    house.ended(&run).await;
    run
}

#[tokio::test]
async fn a_finished_call_keeps_its_result_and_the_rest_of_its_batch_was_not_started() {
    let house = House::shared().await;
    let mark = Marker::new();
    house.model.script(
        Stream::new()
            .tool_call("c1", "shell", &json!({"command": "echo first is done"}))
            .tool_call(
                "c2",
                "shell",
                &json!({"command": format!("echo second began; {}", commands::setsid_child(&mark))}),
            )
            .tool_call("c3", "shell", &json!({"command": "echo third ran"})),
    );
    stop_once_printed(&house, "second began", Push::Gentle).await;
    let seen = next_sees(&house).await;
    assert!(seen.contains("first is done\\n[exit code 0]"), "{seen}");
    assert!(
        seen.contains("second began\\n[stopped by request, ended by SIGTERM; it may have had effects already]"),
        "{seen}"
    );
    assert!(seen.contains("[Not started: the request ended before this call began. It did nothing.]"), "{seen}");
    assert!(!seen.contains("third ran\\n"), "{seen}");
    assert!(
        seen.contains(
            "[The request above was stopped on purpose by the user, before it was finished. Do not resume it"
        ),
        "{seen}"
    );
    house.close().await;
}

#[tokio::test]
async fn a_command_that_ignores_sigterm_is_said_to_be_killed() {
    let house = House::shared().await;
    let deaf = "trap '' TERM; echo deaf; while :; do sleep 0.01; done";
    house.model.script(batch(deaf, "true"));
    stop_once_printed(&house, "deaf", Push::Gentle).await;
    let seen = next_sees(&house).await;
    assert!(seen.contains("deaf\\n[stopped by request, ended by SIGKILL; it may have had effects already]"), "{seen}");
    house.close().await;
}

#[tokio::test]
async fn a_forced_stop_says_what_was_printed_and_that_effects_are_possible() {
    let house = House::shared().await;
    house.model.script(batch("echo so far; sleep 1000", "true"));
    stop_once_printed(&house, "so far", Push::Forced).await;
    let seen = next_sees(&house).await;
    assert!(seen.contains("Stopped while it ran. Side effects are possible") && seen.contains("so far"), "{seen}");
    house.close().await;
}

#[tokio::test]
async fn what_a_command_prints_while_it_cleans_up_is_kept() {
    let house = House::shared().await;
    house.model.script(batch("trap 'echo cleaned up; exit 0' TERM; echo begun; while :; do sleep 0.01; done", "true"));
    stop_once_printed(&house, "begun", Push::Gentle).await;
    let seen = next_sees(&house).await;
    // Some shells say besides that their job was terminated.
    assert!(
        seen.contains("begun\\n") && seen.contains("cleaned up\\n") && seen.contains("[stopped by request"),
        "{seen}"
    );
    house.close().await;
}

#[tokio::test]
async fn a_file_that_was_written_after_the_stop_is_said_to_be_written() {
    let house = House::alone().await;
    let write = Behaviour::tool_call("c1", "write_file", &json!({"path": "new.txt", "content": "hello"}));
    house.model.script(write);
    let run = run_id("writes");
    let (engine, stopped) = (house.engine.clone(), run.clone());
    // The thread is at work, and does not look at its flag any more.
    house.trap.arm(quell_engine::scope::Point::Blocking, 2, move || {
        assert!(engine.stop(&alice(), &of_run(&stopped), &ask(Push::Gentle)).did_something());
    });
    house.send(crate::harness::message_as(&run, "s", "write it")).await;
    house.ended(&run).await;
    let written = house.workdir().join("new.txt").exists();
    let seen = next_sees(&house).await;
    let told = seen.contains("[It came to its own end after the request was stopped. Its effects stand.]");
    let stopped = seen.contains("Stopped while it ran");
    assert_eq!((told, stopped), (written, !written), "{seen}");
    house.close().await;
}

#[rstest]
#[case(StopReason::Command, "stopped on purpose by the user")]
#[case(StopReason::Other("because I say so".to_owned()), "stopped on purpose by the user")]
#[tokio::test]
async fn the_note_says_who_and_never_in_the_callers_words(#[case] reason: StopReason, #[case] said: &str) {
    let house = House::shared().await;
    house.model.script(Behaviour::silent_mid_stream("half"));
    let run = house.send(message("s", "go")).await;
    house.text_came(&run).await;
    let ask = quell_kernel::registry::StopAsk { push: Push::Gentle, reason, surface: Surface::Http };
    assert!(house.engine.stop(&alice(), &of_run(&run), &ask).did_something());
    house.ended(&run).await;
    let seen = next_sees(&house).await;
    assert!(seen.contains(said) && !seen.contains("because I say so"), "{seen}");
    house.close().await;
}

#[tokio::test]
async fn a_time_out_is_told_as_one() {
    let house = House::shared().await;
    house.model.script(Behaviour::silent_mid_stream("half"));
    let timed = quell_engine::dispatch::Submission { timeout: Some(Duration::from_millis(50)), ..message("s", "go") };
    let run = house.send(timed).await;
    house.ended(&run).await;
    assert!(next_sees(&house).await.contains("stopped on purpose because its time was used up"));
    house.close().await;
}

#[rstest]
#[case(PartialPolicy::Discard, false)]
#[case(PartialPolicy::Keep, true)]
#[tokio::test]
async fn partial_text_follows_the_agents_policy_and_its_tokens_are_counted(
    #[case] policy: PartialPolicy,
    #[case] shown: bool,
) {
    let house = House::with(Claim::shared().await, |config| {
        config.agents.get_mut(&agent("main")).unwrap().partial = policy;
    })
    .await;
    house.model.script(Behaviour::silent_mid_stream("The answer is forty"));
    let run = house.send(message("s", "what is it?")).await;
    house.text_came(&run).await;
    assert!(house.stop(&run).did_something());
    let view = house.ended(&run).await;
    assert_eq!(view.output.as_deref(), Some("The answer is forty"), "people see it in the run's record");
    let usage = receipt(&view).usage;
    assert!(usage.estimated && usage.input_tokens > 0 && usage.output_tokens > 0, "{usage:?}");
    let seen = next_sees(&house).await;
    assert_eq!(seen.contains("The answer is forty"), shown, "{seen}");
    assert_eq!(seen.contains("[Interrupted: this message was cut off here"), shown, "{seen}");
    house.close().await;
}

#[tokio::test]
async fn nothing_is_told_of_a_run_that_was_done_when_the_stop_came() {
    let house = House::shared().await;
    house.model.script(Behaviour::text("done"));
    let view = house.ask("s", "go").await;
    assert!(!house.stop(&view.run_id).did_something());
    let seen = next_sees(&house).await;
    assert!(!seen.contains("stopped"), "{seen}");
    let kinds: Vec<ResourceKind> = receipt(&view).resources.iter().map(|row| row.kind).collect();
    assert_eq!(kinds, [ResourceKind::Permit, ResourceKind::ModelRequest]);
    house.close().await;
}
