//! Runs started by runs: their answers, their place in the tree, and which runs a stop of any of them covers (row B7 of
//! docs/design/requirements.md, and "What a stop covers" in docs/design/contract.md).

use quell_engine::live_run::LiveRun;
use quell_kernel::registry::{BackgroundPolicy, QueuedPolicy};

use crate::prelude::*;
use crate::test_engine::{endless_tokens, shell_call};

fn spawn_call(marker: &str) -> ScriptedResponse {
    tool_call("spawn_agent", &json!({"agent": "scout", "prompt": format!("look marker:{marker}")}))
}

fn spawn_background_call(marker: &str) -> ScriptedResponse {
    tool_call("spawn_agent", &json!({"agent": "scout", "prompt": format!("look marker:{marker}"), "wait": false}))
}

fn tool_call(tool: &str, arguments: &Value) -> ScriptedResponse {
    ScriptedResponse::tool_call("c1", tool, arguments)
}

async fn start_engine() -> TestEngine {
    start_engine_with(|_| {}).await
}

async fn start_engine_with(change: impl FnOnce(&mut EngineConfig)) -> TestEngine {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        change(config);
        let (role, parent) = (Some("scout".to_owned()), Some(parse_agent_id("main")));
        let scout = AgentConfig { role, parent, ..config.agents[&parse_agent_id("main")].clone() };
        config.agents.insert(parse_agent_id("scout"), scout);
    })
    .await;
    test.answer_by_marker();
    test
}

/// Starts a run with the marker `top` that ends while the agent `below` that it has started works on; returns its view
/// and the sub-run.
async fn run_with_background_agent(test: &TestEngine, below: impl Into<ScriptedResponse>) -> (RunView, Arc<LiveRun>) {
    test.script_marker("top", [spawn_background_call("below"), ScriptedResponse::text("It is under way.")]);
    test.script_marker("below", [below.into()]);
    let view = test.run_message_in_memory("s", "go marker:top").await;
    let child = wait_child(test, &view.run_id).await;
    (view, child)
}

/// The request of the next message of the session `s`.
async fn next_request(test: &TestEngine) -> String {
    test.run_message("s", "and now? marker:next").await;
    messages_as_text(test.model.wait_for_marked_request("next").await.messages())
}

/// How the receipt says that the sub-run was released.
fn sub_run_release(view: &RunView) -> &str {
    &receipt_of(view).resources.iter().find(|row| row.kind == ResourceKind::Run).unwrap().how
}

/// Waits for a run of another agent that this run started.
async fn wait_child(test: &TestEngine, parent: &RunId) -> Arc<LiveRun> {
    let (engine, of) = (test.engine.clone(), parent.clone());
    let find = move || {
        let child = engine.active_runs().into_iter().find(|view| view.parent.as_ref() == Some(&of));
        child.and_then(|view| engine.live_run(&view.run_id))
    };
    let found = find.clone();
    leaks::wait_until(WAIT_TIMEOUT, move || found().map(drop).ok_or_else(|| "no child yet".to_owned())).await;
    find().unwrap_or_else(|| panic!("the child of {parent} is over"))
}

#[tokio::test]
async fn the_answer_of_another_agent_is_the_result_of_the_call() {
    let test = start_engine().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.script_marker("top", [spawn_call("below"), ScriptedResponse::text("All is well.")]);
    test.script_marker("below", [ScriptedResponse::text("I saw three files.")]);
    let view = test.run_message("s", "go marker:top").await;
    assert_eq!(view.output.as_deref(), Some("All is well."));
    assert_eq!(watcher.call_ends(&view.run_id), [(CallEnd::Ok, "I saw three files.".to_owned())]);
    assert_eq!(sub_run_release(&view), "finished");
    // The sub-run has its own system prompt and tools, and does not see the caller's conversation.
    let asked = test.model.wait_for_marked_request("below").await;
    assert!(!messages_as_text(asked.messages()).contains("marker:top"));
    test.close().await;
}

#[tokio::test]
async fn send_message_keeps_a_conversation_with_that_agent() {
    let test = start_engine().await;
    let send = |text: &str| tool_call("send_message", &json!({"to": "scout", "text": text}));
    test.script_marker("one", [send("remember seven marker:first"), ScriptedResponse::text("Told.")]);
    test.script_marker("two", [send("which was it? marker:second"), ScriptedResponse::text("Asked.")]);
    test.run_message("s", "go marker:one").await;
    test.run_message("s", "again marker:two").await;
    let second = messages_as_text(test.model.wait_for_marked_request("second").await.messages());
    assert!(second.contains("remember seven") && second.contains("which was it?"), "{second}");
    test.script_marker("three", [send("hello marker:third"), ScriptedResponse::text("Told.")]);
    test.run_message("another session", "go marker:three").await;
    let third = messages_as_text(test.model.wait_for_marked_request("third").await.messages());
    assert!(!third.contains("remember seven"), "sessions share nothing");
    test.close().await;
}

#[tokio::test]
async fn a_stop_of_the_parent_stops_its_subtree_with_all_processes() {
    let test = start_engine().await;
    let process_marker = ProcessMarker::new();
    test.script_marker("top", [spawn_call("middle")]);
    test.script_marker("middle", [spawn_call("low")]);
    test.script_marker("low", [shell_call(commands::setsid_child(&process_marker))]);
    let top = test.send(submission("s", "go marker:top")).await;
    let middle = wait_child(&test, &top).await;
    let low = wait_child(&test, middle.id()).await;
    process_marker.wait_for_count(2).await;
    let stop = test.stop(&top);
    assert_eq!(stop.aborted, [low.id().clone(), middle.id().clone(), top.clone()], "children first");
    let view = test.wait_ended(&top).await;
    for live_run in [&low, &middle] {
        assert!(live_run.progress() == RunProgress::Ended, "the parent ended before {live_run:?}");
        assert_eq!(abort_reason(live_run.verdict().as_ref()), StopReason::User);
    }
    process_marker.wait_gone(WAIT_TIMEOUT).await;
    let receipt = receipt_of(&view);
    assert!(receipt.leftovers.is_empty() && receipt.rung == low.receipt().unwrap().rung, "{receipt:#?}");
    test.assert_next_message_works("s").await;
    test.close().await;
}

/// The interrupted text of the child is shown neither to its parent nor to its own model (row X8).
#[tokio::test]
async fn one_child_is_stopped_alone_and_its_parent_goes_on_but_cannot_start_it_again() {
    let test = start_engine().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.script_marker(
        "top",
        [spawn_call("below"), spawn_call("again"), ScriptedResponse::text("I go on without it.")],
    );
    test.script_marker("below", [ScriptedResponse::silent_mid_stream("half an answer")]);
    let top = test.send(submission("s", "go marker:top")).await;
    let child = wait_child(&test, &top).await;
    test.wait_text(child.id()).await;
    assert_eq!(test.stop(child.id()).aborted, [child.id().clone()]);
    let view = test.wait_ended(&top).await;
    assert_eq!(view.output.as_deref(), Some("I go on without it."));
    let (end, output) = watcher.call_ends(&top).remove(0);
    assert_eq!(end, CallEnd::Error);
    assert!(output.contains("was stopped by a person. Do not start it again"), "{output}");
    assert!(!output.contains("half an answer"), "{output}");
    let outputs = messages_as_text(&test.last_messages());
    assert!(outputs.contains("a person stopped the agent \\\"scout\\\" in this turn"), "{outputs}");
    test.close().await;
}

#[tokio::test]
async fn a_background_agent_outlives_its_parent_and_its_answer_is_news_for_the_session() {
    let test = start_engine().await;
    let answer = ScriptedStream::new().wait_for_gate("ready").text("Forty-two.");
    let (view, child) = run_with_background_agent(&test, answer).await;
    assert_eq!((view.output.as_deref(), sub_run_release(&view)), (Some("It is under way."), "kept"));
    test.model.open_gate("ready");
    test.wait_ended(child.id()).await;
    let seen = next_request(&test).await;
    assert!(seen.contains("has answered:]") && seen.contains("Forty-two."), "{seen}");
    test.close().await;
}

/// The agent that started it has ended, and its session gets no further message: the answer goes to the session above.
#[rstest]
#[case::after_its_end(true)]
#[case::while_it_speaks_its_last_words(false)]
#[tokio::test]
async fn news_of_an_agent_that_is_over_goes_to_the_session_above(#[case] late: bool) {
    let test = start_engine().await;
    let answer = ScriptedStream::new().wait_for_gate("ready").text("Forty-two.");
    let last_words = ScriptedStream::new().wait_for_gate("said").text("It is under way.");
    test.script_marker("top", [spawn_call("middle"), ScriptedResponse::text("I wait.")]);
    test.script_marker("middle", [spawn_background_call("below"), last_words.into()]);
    test.script_marker("below", [answer.into()]);
    let top = test.send(submission("s", "go marker:top")).await;
    let middle = wait_child(&test, &top).await;
    let below = wait_child(&test, middle.id()).await;
    let top = test.engine.live_run(&top).unwrap();
    for (gate, over) in if late { [("said", &top), ("ready", &below)] } else { [("ready", &below), ("said", &top)] } {
        test.model.open_gate(gate);
        over.wait_for_progress(RunProgress::Ended).await;
    }
    // A run is forgotten together with those that it started, and the answer is stored before that.
    test.wait_ended(top.id()).await;
    let seen = next_request(&test).await;
    assert!(seen.contains("has answered:]") && seen.contains("Forty-two."), "{seen}");
    test.close().await;
}

/// A person writes to the conversation of two agents while no permit is free: the sub-run of the active run goes first.
#[tokio::test]
async fn a_message_that_waits_for_a_place_does_not_keep_the_sub_run_that_would_free_one() {
    let test = start_engine_with(|config| config.limits.in_flight_runs = 1).await;
    let message = json!({"to": "scout", "text": "and? marker:below"});
    let call = ScriptedStream::new().wait_for_gate("go").tool_call("c1", "send_message", &message);
    test.script_marker("top", [call.into(), ScriptedResponse::text("It has answered.")]);
    let top = test.send(submission("s", "go marker:top")).await;
    test.model.wait_for_marked_request("top").await;
    let waits = test.send(submission("agent:scout:from:s", "hello marker:person")).await;
    test.model.open_gate("go");
    assert_eq!(test.wait_ended(&top).await.output.as_deref(), Some("It has answered."));
    assert_eq!(test.wait_ended(&waits).await.verdict, Some(Verdict::Completed));
    test.close().await;
}

#[tokio::test]
async fn a_stop_of_an_ended_run_stops_what_it_left_and_keeps_its_receipt() {
    let test = start_engine().await;
    let (view, child) = run_with_background_agent(&test, endless_tokens()).await;
    test.wait_text(child.id()).await;
    let stop = test.stop(&view.run_id);
    assert_eq!(stop.aborted, [child.id().clone()]);
    test.wait_ended(child.id()).await;
    // No run below it is alive any more, so it is only in the database, unchanged.
    assert_eq!(test.wait_ended(&view.run_id).await.receipt, view.receipt);
    assert!(test.stop(&view.run_id).aborted.is_empty());
    test.close().await;
}

#[tokio::test]
async fn a_stop_of_the_session_covers_its_background_agents_unless_they_are_to_be_kept() {
    let test = start_engine().await;
    let (_, child) = run_with_background_agent(&test, endless_tokens()).await;
    let (queued, background) = (QueuedPolicy::Withdraw, BackgroundPolicy::Keep);
    let scope = StopScope::Session { key: parse_session_key("s"), queued, background };
    assert!(test.engine.stop(&alice(), &scope, &stop_ask(StopLevel::Gentle)).aborted.is_empty());
    assert_eq!(test.stop_session("s").aborted, [child.id().clone()]);
    test.wait_ended(child.id()).await;
    let seen = next_request(&test).await;
    assert!(seen.contains("is over. The agent scout was stopped by a person. Side effects"), "{seen}");
    assert!(!seen.contains("Do not start it again"), "the person may want it started again: {seen}");
    test.close().await;
}

#[tokio::test]
async fn a_stop_of_a_running_parent_stops_its_background_agents_too() {
    let test = start_engine().await;
    test.script_marker("top", [spawn_background_call("below"), endless_tokens()]);
    test.script_marker("below", [endless_tokens()]);
    let top = test.send(submission("s", "go marker:top")).await;
    let child = wait_child(&test, &top).await;
    test.wait_text(&top).await;
    test.wait_text(child.id()).await;
    assert_eq!(test.stop(&top).aborted.len(), 2);
    let view = test.wait_ended(&top).await;
    assert_eq!(sub_run_release(&view), "cancelled", "the receipt of the parent waits for what it had left behind");
    test.close().await;
}

#[tokio::test]
async fn a_refused_sub_run_is_an_error_for_the_model() {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| config.limits.sub_run_depth = 0).await;
    test.answer_by_marker();
    let main = json!({"agent": "main", "prompt": "x"});
    let unknown = json!({"agent": "nobody", "prompt": "x"});
    let empty = json!({"to": "main", "text": " "});
    let answers =
        [tool_call("spawn_agent", &main), tool_call("spawn_agent", &unknown), tool_call("send_message", &empty)];
    test.script_marker("top", answers.into_iter().chain([ScriptedResponse::text("I see.")]));
    test.run_message("s", "go marker:top").await;
    let seen = messages_as_text(&test.last_messages());
    for text in [
        "sub-runs may be nested at most 0 deep",
        "\\\"nobody\\\" is no agent that you may give work to. You may give work to: main",
        "The text is empty",
    ] {
        assert!(seen.contains(text), "{text}: {seen}");
    }
    test.close().await;
}

#[tokio::test]
async fn parents_do_not_starve_their_children_of_places() {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| config.limits.in_flight_runs = 1).await;
    test.answer_by_marker();
    let spawn = tool_call("spawn_agent", &json!({"agent": "main", "prompt": "look marker:below"}));
    test.script_marker("top", [spawn, ScriptedResponse::text("Done.")]);
    assert_eq!(test.run_message("s", "go marker:top").await.output.as_deref(), Some("Done."));
    test.close().await;
}
