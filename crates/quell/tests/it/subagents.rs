//! Runs that runs start: their answers, their places in the tree, and that a stop from above, below or beside covers what it
//! says (row B7, decisions.md "What a stop covers").

use std::sync::Arc;
use std::time::Duration;

use quell_engine::EngineConfig;
use quell_engine::cell::{Cell, Progress};
use quell_kernel::Push;
use quell_kernel::registry::{Background, Queued, StopScope};
use quell_protocol::{CallEnd, EventKind, ResourceKind, RunId, StopReason, Verdict};
use quell_testkit::commands::{self, Marker};
use quell_testkit::model::Stream;
use quell_testkit::{Behaviour, leaks};
use rstest::rstest;
use serde_json::{Value, json};

use crate::harness::{Claim, House, PATIENCE, Watcher, abort_reason, agent, alice, ask, flat, key, message, receipt};

fn spawn(marker: &str) -> Behaviour {
    calls("spawn_agent", &json!({"agent": "scout", "prompt": format!("look marker:{marker}")}))
}

fn spawn_behind(marker: &str) -> Behaviour {
    calls("spawn_agent", &json!({"agent": "scout", "prompt": format!("look marker:{marker}"), "wait": false}))
}

fn calls(tool: &str, arguments: &Value) -> Behaviour {
    Behaviour::tool_call("c1", tool, arguments)
}

fn for_ever() -> Behaviour {
    Behaviour::tokens_forever(Duration::from_millis(2))
}

async fn house() -> House {
    house_of(|_| {}).await
}

async fn house_of(change: impl FnOnce(&mut EngineConfig)) -> House {
    let house = House::with(Claim::shared().await, |config| {
        change(config);
        let scout = quell_engine::agent::AgentConfig {
            role: Some("scout".to_owned()),
            parent: Some(agent("main")),
            ..config.agents.get(&agent("main")).unwrap().clone()
        };
        config.agents.insert(agent("scout"), scout);
    })
    .await;
    house.answer_by_marker();
    house
}

/// The run of another agent that this run started.
async fn child_of(house: &House, parent: &RunId) -> Arc<Cell> {
    let (engine, of) = (house.engine.clone(), parent.clone());
    let find = move || {
        let child = engine.active_runs().into_iter().find(|view| view.parent.as_ref() == Some(&of));
        child.and_then(|view| engine.live(&view.run_id))
    };
    let found = find.clone();
    leaks::settled(PATIENCE, move || found().map(drop).ok_or_else(|| "no child yet".to_owned())).await;
    find().unwrap_or_else(|| panic!("the child of {parent} is over"))
}

fn ended_call(watcher: &mut Watcher, run: &RunId) -> (CallEnd, String) {
    let events = watcher.events(run);
    let ended = events.iter().find_map(|event| match &event.kind {
        EventKind::ToolEnded { end, output, .. } => Some((*end, output.clone())),
        _ => None,
    });
    ended.unwrap_or_else(|| panic!("no call of {run} ended: {events:#?}"))
}

#[tokio::test]
async fn the_answer_of_another_agent_is_the_result_of_the_call() {
    let house = house().await;
    let mut watcher = Watcher::of(&house.engine);
    house.script("top", [spawn("below"), Behaviour::text("All is well.")]);
    house.script("below", [Behaviour::text("I saw three files.")]);
    let view = house.ask("s", "go marker:top").await;
    assert_eq!(view.output.as_deref(), Some("All is well."));
    assert_eq!(ended_call(&mut watcher, &view.run_id), (CallEnd::Ok, "I saw three files.".to_owned()));
    let row = receipt(&view).resources.iter().find(|row| row.kind == ResourceKind::Run).unwrap().clone();
    assert_eq!(row.how, "finished");
    // Its system prompt and tools are its own; the caller's conversation is not.
    let asked = house.model.marked("below").await;
    assert!(!flat(asked.messages()).contains("marker:top"));
    house.close().await;
}

#[tokio::test]
async fn send_message_keeps_a_conversation_with_that_agent() {
    let house = house().await;
    let send = |text: &str| calls("send_message", &json!({"to": "scout", "text": text}));
    house.script("one", [send("remember seven marker:first"), Behaviour::text("Told.")]);
    house.script("two", [send("which was it? marker:second"), Behaviour::text("Asked.")]);
    house.ask("s", "go marker:one").await;
    house.ask("s", "again marker:two").await;
    let second = flat(house.model.marked("second").await.messages());
    assert!(second.contains("remember seven") && second.contains("which was it?"), "{second}");
    house.script("three", [send("hello marker:third"), Behaviour::text("Told.")]);
    house.ask("another session", "go marker:three").await;
    assert!(!flat(house.model.marked("third").await.messages()).contains("remember seven"), "sessions share nothing");
    house.close().await;
}

#[tokio::test]
async fn a_stop_of_the_parent_stops_its_subtree_with_all_processes() {
    let house = house().await;
    let mark = Marker::new();
    house.script("top", [spawn("middle")]);
    house.script("middle", [spawn("low")]);
    let command = json!({"command": commands::setsid_child(&mark)});
    house.script("low", [calls("shell", &command)]);
    let top = house.send(message("s", "go marker:top")).await;
    let middle = child_of(&house, &top).await;
    let low = child_of(&house, middle.id()).await;
    mark.at_least(2).await;
    let stop = house.stop(&top);
    assert_eq!(stop.aborted, [low.id().clone(), middle.id().clone(), top.clone()], "children first");
    let view = house.ended(&top).await;
    for cell in [&low, &middle] {
        assert!(cell.progress() == Progress::Ended, "the parent ended before {cell:?}");
        assert_eq!(abort_reason(cell.verdict().as_ref()), StopReason::User);
    }
    mark.gone(PATIENCE).await;
    let receipt = receipt(&view);
    assert!(receipt.leftovers.is_empty() && receipt.rung == low.receipt().unwrap().rung, "{receipt:#?}");
    let next = house.ask("s", "and now? marker:next").await;
    assert_eq!(next.verdict, Some(Verdict::Completed));
    house.close().await;
}

#[tokio::test]
async fn one_child_is_stopped_alone_and_its_parent_goes_on_but_cannot_start_it_again() {
    let house = house().await;
    let mut watcher = Watcher::of(&house.engine);
    house.script("top", [spawn("below"), spawn("again"), Behaviour::text("I go on without it.")]);
    house.script("below", [for_ever()]);
    let top = house.send(message("s", "go marker:top")).await;
    let child = child_of(&house, &top).await;
    house.text_came(child.id()).await;
    assert_eq!(house.stop(child.id()).aborted, [child.id().clone()]);
    let view = house.ended(&top).await;
    assert_eq!(view.output.as_deref(), Some("I go on without it."));
    let (end, output) = ended_call(&mut watcher, &top);
    assert_eq!(end, CallEnd::Error);
    assert!(output.contains("was stopped by a person. Do not start it again"), "{output}");
    let outputs = flat(&house.last_messages());
    assert!(outputs.contains("a person stopped the agent \\\"scout\\\" in this turn"), "{outputs}");
    house.close().await;
}

#[tokio::test]
async fn a_background_agent_outlives_its_parent_and_its_answer_is_news_for_the_session() {
    let house = house().await;
    let answer = Stream::new().wait_for("ready").text("Forty-two.");
    house.script("top", [spawn_behind("below"), Behaviour::text("It is under way.")]);
    house.script("below", [answer.into()]);
    let view = house.ask_and_wait("s", "go marker:top").await;
    assert_eq!(view.output.as_deref(), Some("It is under way."));
    let row = receipt(&view).resources.iter().find(|row| row.kind == ResourceKind::Run).unwrap().clone();
    assert_eq!(row.how, "kept");
    let child = child_of(&house, &view.run_id).await;
    house.model.open_gate("ready");
    house.ended(child.id()).await;
    house.ask("s", "what did it say? marker:next").await;
    let seen = flat(house.model.marked("next").await.messages());
    assert!(seen.contains("has answered:]") && seen.contains("Forty-two."), "{seen}");
    house.close().await;
}

/// The agent that started it had a session of its own, to which nobody will write again: whoever ordered that agent is told.
#[rstest]
#[case::after_its_end(true)]
#[case::while_it_speaks_its_last_words(false)]
#[tokio::test]
async fn news_of_an_agent_that_is_over_goes_to_the_session_above(#[case] late: bool) {
    let house = house().await;
    let answer = Stream::new().wait_for("ready").text("Forty-two.");
    let last_words = Stream::new().wait_for("said").text("It is under way.");
    house.script("top", [spawn("middle"), Behaviour::text("I wait.")]);
    house.script("middle", [spawn_behind("below"), last_words.into()]);
    house.script("below", [answer.into()]);
    let top = house.send(message("s", "go marker:top")).await;
    let middle = child_of(&house, &top).await;
    let below = child_of(&house, middle.id()).await;
    let top = house.engine.live(&top).unwrap();
    for (gate, over) in if late { [("said", &top), ("ready", &below)] } else { [("ready", &below), ("said", &top)] } {
        house.model.open_gate(gate);
        over.reached(Progress::Ended).await;
    }
    // Whoever started something is forgotten with it, and the news is there before that.
    house.ended(top.id()).await;
    house.ask("s", "what did it say? marker:next").await;
    let seen = flat(house.model.marked("next").await.messages());
    assert!(seen.contains("has answered:]") && seen.contains("Forty-two."), "{seen}");
    house.close().await;
}

/// A person writes into the conversation of two agents while every place is taken: what the one at work asks for there goes first.
#[tokio::test]
async fn a_message_that_waits_for_a_place_does_not_keep_the_sub_run_that_would_free_one() {
    let house = house_of(|config| config.limits.in_flight_runs = 1).await;
    let asks = Stream::new().wait_for("go").tool_call(
        "c1",
        "send_message",
        &json!({"to": "scout", "text": "and? marker:below"}),
    );
    house.script("top", [asks.into(), Behaviour::text("It has answered.")]);
    let top = house.send(message("s", "go marker:top")).await;
    house.model.marked("top").await;
    let waits = house.send(message("agent:scout:from:s", "hello marker:person")).await;
    house.model.open_gate("go");
    assert_eq!(house.ended(&top).await.output.as_deref(), Some("It has answered."));
    assert_eq!(house.ended(&waits).await.verdict, Some(Verdict::Completed));
    house.close().await;
}

/// It was cut off, and its own model would not see it either (row X8).
#[tokio::test]
async fn the_text_of_a_child_that_was_stopped_reaches_its_parent_only_where_partial_text_is_kept() {
    let house = house().await;
    let mut watcher = Watcher::of(&house.engine);
    house.script("top", [spawn("below"), Behaviour::text("I go on without it.")]);
    house.script("below", [Behaviour::silent_mid_stream("half an answer")]);
    let top = house.send(message("s", "go marker:top")).await;
    let child = child_of(&house, &top).await;
    house.text_came(child.id()).await;
    assert_eq!(house.stop(child.id()).aborted, [child.id().clone()]);
    house.ended(&top).await;
    let (_, output) = ended_call(&mut watcher, &top);
    assert!(output.contains("was stopped by a person") && !output.contains("half an answer"), "{output}");
    house.close().await;
}

#[tokio::test]
async fn a_stop_of_an_ended_run_stops_what_it_left_and_keeps_its_receipt() {
    let house = house().await;
    house.script("top", [spawn_behind("below"), Behaviour::text("It is under way.")]);
    house.script("below", [for_ever()]);
    let view = house.ask_and_wait("s", "go marker:top").await;
    let child = child_of(&house, &view.run_id).await;
    house.text_came(child.id()).await;
    let stop = house.stop(&view.run_id);
    assert_eq!(stop.aborted, [child.id().clone()]);
    house.ended(child.id()).await;
    // Nothing lives below it any more, so it is only in the database, as it was.
    assert_eq!(house.ended(&view.run_id).await.receipt, view.receipt);
    assert!(house.stop(&view.run_id).aborted.is_empty());
    house.close().await;
}

#[tokio::test]
async fn a_stop_of_the_session_covers_its_background_agents_unless_they_are_to_be_kept() {
    let house = house().await;
    house.script("top", [spawn_behind("below"), Behaviour::text("It is under way.")]);
    house.script("below", [for_ever()]);
    let view = house.ask_and_wait("s", "go marker:top").await;
    let child = child_of(&house, &view.run_id).await;
    let scope = StopScope::Session { key: key("s"), queued: Queued::Withdraw, background: Background::Keep };
    assert!(house.engine.stop(&alice(), &scope, &ask(Push::Gentle)).aborted.is_empty());
    assert_eq!(house.stop_session("s").aborted, [child.id().clone()]);
    house.ended(child.id()).await;
    house.ask("s", "and now? marker:next").await;
    let seen = flat(house.model.marked("next").await.messages());
    assert!(seen.contains("is over. The agent scout was stopped by a person. Side effects"), "{seen}");
    assert!(!seen.contains("Do not start it again"), "the person may want just that: {seen}");
    house.close().await;
}

#[tokio::test]
async fn a_stop_of_a_running_parent_stops_its_background_agents_too() {
    let house = house().await;
    house.script("top", [spawn_behind("below"), for_ever()]);
    house.script("below", [for_ever()]);
    let top = house.send(message("s", "go marker:top")).await;
    let child = child_of(&house, &top).await;
    house.text_came(&top).await;
    house.text_came(child.id()).await;
    assert_eq!(house.stop(&top).aborted.len(), 2);
    let view = house.ended(&top).await;
    let row = receipt(&view).resources.iter().find(|row| row.kind == ResourceKind::Run).unwrap().clone();
    assert_eq!(row.how, "cancelled", "the receipt of the parent waits for what it had left behind");
    house.close().await;
}

#[tokio::test]
async fn what_cannot_be_started_is_an_error_for_the_model() {
    let house = House::with(Claim::shared().await, |config| config.limits.sub_run_depth = 0).await;
    house.answer_by_marker();
    let main = json!({"agent": "main", "prompt": "x"});
    let unknown = json!({"agent": "nobody", "prompt": "x"});
    let empty = json!({"to": "main", "text": " "});
    let answers = [calls("spawn_agent", &main), calls("spawn_agent", &unknown), calls("send_message", &empty)];
    house.script("top", answers.into_iter().chain([Behaviour::text("I see.")]));
    house.ask("s", "go marker:top").await;
    let seen = flat(&house.last_messages());
    for text in [
        "sub-runs may stand 0 deep",
        "\\\"nobody\\\" is no agent that you may give work to. You may give work to: main",
        "The text is empty",
    ] {
        assert!(seen.contains(text), "{text}: {seen}");
    }
    house.close().await;
}

#[tokio::test]
async fn parents_do_not_starve_their_children_of_places() {
    let house = House::with(Claim::shared().await, |config| config.limits.in_flight_runs = 1).await;
    house.answer_by_marker();
    let spawn = calls("spawn_agent", &json!({"agent": "main", "prompt": "look marker:below"}));
    house.script("top", [spawn, Behaviour::text("Done.")]);
    assert_eq!(house.ask("s", "go marker:top").await.output.as_deref(), Some("Done."));
    house.close().await;
}
