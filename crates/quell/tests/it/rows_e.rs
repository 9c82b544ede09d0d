//! Rows E and X at the engine: what a stopped run answers, what it leaves, what it cost, and what a daemon that died leaves.

use std::slice::from_ref;

use quell_engine::Engine;
use quell_engine::dispatch::Notice;
use quell_engine::scope::{Point, Probe};
use quell_kernel::Push;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::{ErrorCode, EventKind, ResourceKind, StopReason, Verdict};
use quell_testkit::model::{Stream, UsageFrame};
use quell_testkit::{Behaviour, leaks};
use rstest::rstest;
use serde_json::json;

use crate::harness::{
    Claim, House, PATIENCE, Watcher, abort_reason, agent, alice, ask, config, copy_of, flat, key, message, message_as,
    of_run, receipt, root, run_id,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e2_an_error_that_surfaces_after_the_stop_is_cancelled_not_failed() {
    let house = House::shared().await;
    let run = run_id("late-error");
    let (engine, id) = (house.engine.clone(), run.clone());
    // The stop comes while the error answer is being read; the error itself surfaces only after it.
    house.trap.arm(Point::ModelError, 1, move || {
        assert_eq!(engine.stop(&alice(), &of_run(&id), &ask(Push::Gentle)).aborted, [id]);
    });
    house.model.script(Behaviour::status(400));
    house.send(message_as(&run, "s", "hello")).await;
    let view = house.ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_a_stopped_run_answers_execution_paused_with_the_steps_that_ran() {
    let house = House::shared().await;
    house.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": "true"})));
    house.model.script(Behaviour::SilentBeforeHeaders);
    let run = house.send(message("s", "hello")).await;
    house.model.request(1).arrived().await;
    house.stop(&run);
    let result = serde_json::to_value(house.ended(&run).await.result).unwrap();
    let expected = json!({"success": false, "cancelled": true, "error": "Execution paused", "loopCount": 2});
    assert_eq!(result, expected);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_e5_the_next_message_continues_on_the_finished_tool_results() {
    let house = House::shared().await;
    let batch = Stream::new().tool_call("c1", "shell", &json!({"command": "echo $((40 + 2)) is known"})).tool_call(
        "c2",
        "shell",
        &json!({"command": "sleep 600"}),
    );
    house.model.script(batch);
    let run = house.send(message("s", "work")).await;
    let mut watcher = house.engine.live(&run).unwrap().follow(0);
    let mut started = 0;
    while started < 2 {
        let event = watcher.next().await.unwrap();
        started += u32::from(matches!(event.kind, EventKind::ToolStarted { .. }));
    }
    house.holds(&run, ResourceKind::Process).await;
    house.stop(&run);
    house.ended(&run).await;
    house.model.script(Behaviour::text("I go on with 42."));
    house.ask("s", "go on").await;
    let messages = house.last_messages();
    let results: Vec<_> = messages.iter().filter(|message| message["role"] == "tool").collect();
    assert_eq!(results.len(), 2, "{messages:#?}");
    assert!(results[0]["content"].as_str().unwrap().contains("42 is known"), "{messages:#?}");
    assert!(results[1]["content"].as_str().unwrap().contains("topped"), "{messages:#?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e6_embedders_hear_of_the_cancel_before_the_stream_ends_and_nothing_runs_after_it() {
    let house = House::shared().await;
    let mut watcher = Watcher::of(&house.engine);
    house.model.script(Behaviour::silent_mid_stream("Once upon"));
    let run = house.send(message("s", "a story")).await;
    house.model.request(0).resting().await;
    assert_eq!(house.engine.active_of(&key("s")), from_ref(&run));
    house.stop(&run);
    house.ended(&run).await;
    assert!(house.engine.active_of(&key("s")).is_empty());
    let seen = watcher.seen();
    let cancelling = seen.iter().position(|notice| {
        matches!(notice, Notice::Cancelling { run_id, session_key, reason }
            if *run_id == run && *session_key == key("s") && *reason == StopReason::User)
    });
    let ending = seen
        .iter()
        .position(|notice| matches!(notice, Notice::Run(event) if matches!(event.kind, EventKind::Ending { .. })));
    assert!(cancelling.is_some() && cancelling < ending, "{seen:#?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x8_the_tokens_of_an_interrupted_step_are_counted_and_marked_as_estimated() {
    let house = House::shared().await;
    let counted =
        Stream::new().tool_call("c1", "shell", &json!({"command": "true"})).usage(UsageFrame::Always, 1000, 100);
    house.model.script(counted).script(Behaviour::silent_mid_stream("word ".repeat(40)));
    let run = house.send(message("s", "hello")).await;
    house.model.request(1).resting().await;
    house.text_came(&run).await;
    house.stop(&run);
    let view = house.ended(&run).await;
    let usage = receipt(&view).usage;
    assert!(usage.estimated, "{usage:?}");
    assert!(usage.input_tokens > 1000 && usage.output_tokens > 100, "the cut step costs too: {usage:?}");
    assert_eq!(view.usage, usage);
    house.close().await;
}

#[rstest]
#[case::discard(PartialPolicy::Discard, false)]
#[case::keep(PartialPolicy::Keep, true)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x8_partial_text_is_kept_for_the_model_only_where_the_agent_says_so(
    #[case] policy: PartialPolicy,
    #[case] seen_by_model: bool,
) {
    let house = House::with(Claim::shared().await, |config| {
        config.agents.get_mut(&agent("main")).unwrap().partial = policy;
    })
    .await;
    house.model.script(Behaviour::silent_mid_stream("The beginning of"));
    let run = house.send(message("s", "a story")).await;
    house.model.request(0).resting().await;
    house.text_came(&run).await;
    house.stop(&run);
    assert_eq!(house.ended(&run).await.output.as_deref(), Some("The beginning of"), "people see it in any case");
    house.model.script(Behaviour::text("ok"));
    house.ask("s", "and now?").await;
    let seen = flat(&house.last_messages());
    assert_eq!(seen.contains("The beginning of"), seen_by_model, "{seen}");
    assert_eq!(seen.contains("cut off here"), seen_by_model, "{seen}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_stops_what_runs_and_what_waits_and_leaves_nothing() {
    let house = House::shared().await;
    house.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": "trap '' TERM; sleep 600"})));
    let running = house.send(message("s", "run it")).await;
    house.holds(&running, ResourceKind::Process).await;
    let queued = house.send(message("s", "wait for it")).await;
    let left = house.engine.shut_down().await;
    assert!(left.is_empty(), "{left:?}");
    leaks::no_process_with(&format!("QUELL_RUN_ID={running}"), PATIENCE).await;
    let refused = house.refusal(message("t", "too late")).await;
    assert_eq!(refused.code(), ErrorCode::ShuttingDown);

    let again = Engine::start(config(house.dir.path(), &house.model.base_url(), Probe::default())).await.unwrap();
    for (run, turn) in [(&running, true), (&queued, false)] {
        let view = again.run(run).await.unwrap().unwrap();
        assert_eq!(view.verdict, Some(Verdict::Aborted { reason: StopReason::Shutdown, by: None }), "{view:#?}");
        assert_eq!(receipt(&view).turn.recorded, turn, "{view:#?}");
    }
    assert!(again.shut_down().await.is_empty());
}

/// The data directory as it stood at that instant is what a daemon that dies then leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_daemon_left_open_is_sealed_and_nothing_resumes() {
    let house = House::shared().await;
    house.model.script(Behaviour::text("before"));
    house.ask("s", "earlier").await;
    house.model.script(Behaviour::silent_mid_stream("half"));
    let started = house.send(message("s", "started when it died")).await;
    house.model.request(1).resting().await;
    let queued = house.send(message("s", "queued when it died")).await;
    house.engine.set_hold(&root(), true, None).await.unwrap();
    let left = copy_of(house.dir.path());
    house.engine.shut_down().await;

    let again = Engine::start(config(left.path(), &house.model.base_url(), Probe::default())).await.unwrap();
    assert!(again.active_runs().is_empty());
    for (run, turn) in [(&started, true), (&queued, false)] {
        let view = again.run(run).await.unwrap().unwrap();
        assert_eq!(view.verdict, Some(Verdict::Aborted { reason: StopReason::DaemonStopped, by: None }));
        assert_eq!((view.state.as_str(), receipt(&view).turn.recorded), ("ended", turn), "{view:#?}");
    }
    assert!(again.hold().await.unwrap().held, "a hold survives");
    again.set_hold(&root(), false, None).await.unwrap();
    assert_eq!(house.model.seen().len(), 2, "nothing was asked of the model again");
    house.model.script(Behaviour::text("after"));
    again.submit(&alice(), message("s", "later")).await.unwrap();
    let request = house.model.request(2).arrived().await;
    let seen = flat(request.messages());
    assert!(seen.contains("earlier") && seen.contains("started when it died"), "{seen}");
    assert!(seen.contains("because the service went down") && !seen.contains("queued when it died"), "{seen}");
    request.finished().await;
    assert!(again.shut_down().await.is_empty());
    house.model.assert_histories_valid();
}
