//! What a stop from a chat reaches, who may use it, and what it replies.

use std::sync::Arc;
use std::time::Duration;

use quell_engine::agent::AgentConfig;
use quell_engine::engine::SubmitOutcome;
use quell_engine::live_run::RunProgress;
use quell_kernel::StopLevel;
use quell_protocol::{AgentId, ResourceKind, Rung, Verdict};
use quell_scope::Release;
use quell_testkit::model::ScriptedResponse;
use rstest::rstest;
use serde_json::json;

use super::fake_network::{FakeNetworkCall, FakeNetworkFault, FakeNetworkState};
use super::{FlowFixture, WAIT_TIMEOUT, page_admin, page_stop_request, page_submission};
use crate::network::test_support::attachment_from;

/// Regression: a stop registered as the newest task, and ended itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_what_runs_and_is_no_run_itself() {
    let fixture = FlowFixture::start().await;
    fixture.model.script(ScriptedResponse::silent_mid_stream("I begin"));
    let message_id = fixture.network.receive_text("ann", "write");
    fixture.network.wait_for_text("I begin").await;
    let stop = fixture.network.receive_text("ann", "/stop");
    fixture.model.request_at(0).wait_client_left().await;
    let state = fixture.network.wait_for_text("⏹ stopped in").await;
    assert!(state.contains_text("Stopping your request."), "{state:#?}");
    let state = fixture.network.wait_for("the last sign", |state| state.reactions_on(&message_id) == ["⏹"]).await;
    assert!(state.contains_text("I begin\n\n⏹ Stopped."), "{state:#?}");
    assert!(!state.is_typing() && state.reactions_on(&stop).is_empty(), "{state:#?}");
    assert_eq!(fixture.engine.active_runs().len(), 0);
    fixture.shut_down().await;
}

/// Regression: the loop that took messages waited for a permit, and did not read the stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_read_while_every_place_is_taken() {
    let fixture = FlowFixture::start_with("", |config| config.limits.in_flight_runs = 1).await;
    fixture.start_silent_run("first", "one").await;
    for sender in ["bob", "eve", "joe"] {
        fixture.network.receive_text(sender, "wait in line");
    }
    fixture.network.receive_text("bob", "STOP");
    let state = fixture.network.wait_for_text("1 waiting message will not be answered.").await;
    assert!(!state.contains_text("⏹ stopped in"), "what waited held nothing: {state:#?}");
    fixture.network.receive_text("ann", "/stop");
    fixture.model.request_at(0).wait_client_left().await;
    fixture.shut_down().await;
}

/// Regression: without interruption, a second message displaced the first one, which could not be stopped any more.
#[tokio::test(flavor = "multi_thread")]
async fn the_active_run_can_be_stopped_behind_any_queue() {
    let fixture = FlowFixture::start().await;
    fixture.model.script(ScriptedResponse::silent_mid_stream("one"));
    for number in 0..5 {
        fixture.network.receive_text("ann", &format!("message {number}"));
    }
    fixture.model.request_at(0).wait_streaming().await;
    fixture.network.wait_for("all of them", |state| state.inbound_count == 5).await;
    fixture.wait_for_active_runs(5).await;
    fixture.network.receive_text("ann", "stop");
    fixture.model.request_at(0).wait_client_left().await;
    let expected = "Stopping your request. 4 waiting messages will not be answered.";
    fixture.network.wait_for("what was stopped", |state| state.texts().contains(&expected)).await;
    // The next message waits for the end of the stopped run, and is answered.
    fixture.ask("ann", "and now?", "Here.").await;
    assert_eq!(fixture.model.request_count(), 2);
    fixture.model.assert_histories_valid();
    fixture.shut_down().await;
}

/// Regression: a stopped turn was stored after its successor, and the conversation was unusable from then on.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_lives_on_after_stops_at_any_moment() {
    let fixture = FlowFixture::start().await;
    fixture.model.respond_by_prompt(|prompt, _| match prompt.contains("still there?") {
        true => ScriptedResponse::text("Alive."),
        false => ScriptedResponse::silent_mid_stream("hm"),
    });
    for round in 0..20 {
        fixture.network.receive_text("ann", &format!("round {round}"));
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        fixture.network.receive_text("ann", "/stop");
        while fixture.network.state().inbound_count < 2 * (round + 1) || !fixture.engine.active_runs().is_empty() {
            tokio::task::yield_now().await;
        }
    }
    fixture.network.receive_text("ann", "still there?");
    fixture.network.wait_for_text("Alive.").await;
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_sender_and_an_operator_stop_a_request() {
    let fixture = FlowFixture::start().await;
    for sender in ["ann", "bob"] {
        fixture.model.script(ScriptedResponse::silent_mid_stream("hm"));
        fixture.network.receive_text(sender, "go");
    }
    fixture.model.request_at(1).wait_streaming().await;
    fixture.network.receive_text("eve", "/stop");
    fixture.network.receive_text("eve", "/stop all");
    fixture
        .network
        .wait_for("two answers", |state| {
            state.contains_text("Nothing of yours is running here.")
                && state.contains_text("/stop all is for operators")
        })
        .await;
    assert_eq!(fixture.engine.active_runs().len(), 2);
    fixture.network.receive_text("root", "/stop all");
    fixture.network.wait_for_text("Stopping 2 requests.").await;
    for request in 0..2 {
        fixture.model.request_at(request).wait_client_left().await;
    }
    fixture.shut_down().await;
}

/// Regression: each run had a message of its own, and the last ones of a busy channel were dropped.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_many_runs_is_told_in_one_message() {
    let fixture = FlowFixture::start().await;
    let senders = ["ann", "bob", "eve", "joe", "kim"];
    for sender in senders {
        fixture.model.script(ScriptedResponse::silent_mid_stream("hm"));
        fixture.network.receive_text(sender, "go");
    }
    for request in 0..senders.len() {
        fixture.model.request_at(request).wait_streaming().await;
    }
    fixture.network.receive_text("root", "/stop all");
    let summed_up = |text: &&str| text.starts_with("⏹ 5 requests stopped, the slowest in ");
    let state = fixture.network.wait_for("the end", |state| state.texts().iter().any(summed_up)).await;
    let texts = state.texts();
    let summary = texts.iter().find(|text| summed_up(text)).unwrap();
    assert!(summary.ends_with(" · all processes dead, nothing left open · all histories valid"), "{summary}");
    assert!(texts.contains(&"Stopping 5 requests.") && !state.contains_text("⏹ stopped in"), "{texts:?}");
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_not_for_the_account_is_heard_for_its_stop_word_alone() {
    let fixture = FlowFixture::start().await;
    fixture.start_silent_run("go", "hm").await;
    let mut inbound = fixture.network.inbound_message("room", "ann", "what do you all think?");
    inbound.is_addressed = false;
    fixture.network.receive_message(inbound.clone());
    (inbound.id, inbound.text) = ("other".to_owned(), "stop!".to_owned());
    fixture.network.receive_message(inbound);
    fixture.model.request_at(0).wait_client_left().await;
    fixture.network.wait_for_text("⏹ stopped in").await;
    assert_eq!(fixture.model.request_count(), 1);
    fixture.shut_down().await;
}

/// Regression: every stop started a task that answered it, without bound.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_stops_acts_at_once_and_is_answered_within_bounds() {
    let fixture = FlowFixture::start().await;
    fixture.start_silent_run("go", "hm").await;
    for _ in 0..2000 {
        fixture.network.receive_text("ann", "/stop");
    }
    fixture.model.request_at(0).wait_client_left().await;
    let state = fixture
        .network
        .wait_for("all of them", |state| state.inbound_count == 2001 && state.contains_text("⏹ stopped in"))
        .await;
    let answers = state.messages.iter().filter(|written| !written.text.starts_with("hm")).count();
    assert!(answers < 300, "{answers} answers to 2,000 stops");
    fixture.shut_down().await;
}

/// Regression: one address with a rate limit held up the replies to all others.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_room_does_not_hold_up_the_answer_to_a_stop_in_another() {
    let fixture = FlowFixture::start().await;
    fixture.network.inject_fault(FakeNetworkCall::Send, FakeNetworkFault::Hangs);
    fixture.network.receive_text_in("slow room", "bob", "/help");
    fixture.network.wait_until_faults_used().await;
    fixture.network.receive_text_in("room", "ann", "/stop");
    let answered =
        |state: &FakeNetworkState| state.contains_text("Nothing of yours is running here.") && state.hanging == 1;
    fixture.network.wait_for("an answer while the other room is still slow", answered).await;
    fixture.shut_down().await;
}

/// Regression: the stop reply came after the last line of a long help text.
#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_a_stop_waits_behind_nothing_that_is_said_in_its_place() {
    let fixture = FlowFixture::start_with("drafts = false", |_| {}).await;
    fixture.start_silent_run("go", "hm").await;
    fixture.network.inject_fault(FakeNetworkCall::Send, FakeNetworkFault::Hangs);
    fixture.network.receive_text("ann", "/help");
    fixture.network.wait_until_faults_used().await;
    fixture.network.receive_text("ann", "/stop");
    fixture
        .network
        .wait_for("the receipt", |state| {
            state.contains_text("Stopping your request.") && state.contains_text("⏹ stopped in")
        })
        .await;
    fixture.shut_down().await;
}

#[rstest]
#[case::a_notice("/help")]
#[case::an_answer("tell me")]
#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_hangs_does_not_keep_the_daemon_alive(#[case] text: &str) {
    let fixture = FlowFixture::start_with("drafts = false", |_| {}).await;
    fixture.model.script(ScriptedResponse::text("The answer."));
    fixture.network.inject_fault(FakeNetworkCall::Send, FakeNetworkFault::Hangs);
    fixture.network.receive_text("ann", text);
    let network = Arc::clone(&fixture.network);
    network.wait_for("the call that hangs", |state| state.hanging == 1).await;
    let ended = tokio::time::timeout(Duration::from_secs(60), fixture.shut_down_within(Duration::from_millis(100)));
    drop(ended.await.unwrap());
    network.wait_for("the end of the call", |state| state.hanging == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_reaches_an_answer_on_its_way() {
    let fixture = FlowFixture::start_with("drafts = false", |_| {}).await;
    fixture.model.script(ScriptedResponse::text("The answer."));
    fixture.network.inject_fault(FakeNetworkCall::Send, FakeNetworkFault::Hangs);
    fixture.network.receive_text("ann", "tell me");
    fixture.model.request_at(0).wait_finished().await;
    let run = loop {
        let runs = fixture.engine.active_runs();
        let run = runs.first().map(|run| run.run_id.clone()).unwrap();
        let held = fixture.engine.find_run(&run).await.unwrap().unwrap().held;
        if held.iter().any(|row| row.label == "paper room") {
            break run;
        }
    };
    // The answer hangs, not the reply to the stop.
    fixture.network.wait_until_faults_used().await;
    fixture.network.receive_text("ann", "/stop");
    fixture.network.wait_for_text("1 delivery cancelled").await;
    let view = fixture.engine.find_run(&run).await.unwrap().unwrap();
    let receipt = view.receipt.unwrap();
    assert!(receipt.leftovers.is_empty());
    let row = receipt.resources.iter().find(|row| row.label == "paper room").unwrap();
    assert_eq!(row.how, "cancelled");
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_reaches_files_that_are_being_fetched() {
    let fixture = FlowFixture::start().await;
    let mut inbound = fixture.network.inbound_message("room", "ann", "look");
    inbound.attachments.push(attachment_from("slow"));
    fixture.network.receive_message(inbound);
    loop {
        let runs = fixture.engine.active_runs();
        let Some(run) = runs.first() else { continue };
        let held = fixture.engine.find_run(&run.run_id).await.unwrap().unwrap().held;
        if held.iter().any(|row| row.label == "1 attachments from paper") {
            break;
        }
    }
    fixture.network.receive_text("ann", "/stop");
    fixture.network.wait_for_text("1 delivery cancelled").await;
    assert_eq!(fixture.model.request_count(), 0);
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_from_elsewhere_is_told_in_the_chat() {
    let fixture = FlowFixture::start().await;
    fixture.model.script(ScriptedResponse::silent_mid_stream("I begin"));
    let message_id = fixture.network.receive_text("ann", "write");
    fixture.network.wait_for_text("I begin").await;
    let run = fixture.engine.active_runs()[0].run_id.clone();
    let admin = page_admin();
    let scope = quell_kernel::registry::StopScope::run(run);
    assert!(fixture.engine.stop(&admin, &scope, &page_stop_request()).stopped_anything());
    fixture.network.wait_for_text("I begin\n\n⏹ stopped in").await;
    fixture.network.wait_for("the last sign", |state| state.reactions_on(&message_id) == ["⏹"]).await;
    fixture.shut_down().await;
}

/// The run holds something until the forced stop is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_stop_forces() {
    let fixture = FlowFixture::start_with("", |config| config.stop_timeouts.grace = Duration::from_secs(60)).await;
    fixture.start_silent_run("go", "hm").await;
    let run = fixture.engine.active_runs()[0].run_id.clone();
    let live_run = fixture.engine.live_run(&run).unwrap();
    let (told, mut levels) = tokio::sync::mpsc::unbounded_channel();
    let stubborn = live_run.scope.hold(ResourceKind::Task, "stubborn");
    let stubborn = stubborn.on_stop(move |level| told.send(level).unwrap());
    for expected in [StopLevel::Gentle, StopLevel::Forced] {
        fixture.network.receive_text("ann", "/stop");
        let level = tokio::time::timeout(WAIT_TIMEOUT, levels.recv()).await.expect("the stop comes");
        assert_eq!(level, Some(expected));
    }
    stubborn.release(Release::Kill);
    live_run.wait_for_progress(RunProgress::Ended).await;
    assert_eq!(live_run.view().receipt.unwrap().rung, Rung::Kill);
    fixture.network.wait_for_text("⏹ stopped in").await;
    fixture.shut_down().await;
}

/// Regression: the sub-run was stopped, and the sender read that nothing was running.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_finds_nothing_but_a_sub_run_in_the_background_says_so() {
    let fixture = FlowFixture::start_with("", |config| {
        let main = config.agents.values().next().unwrap().clone();
        let parent = AgentId::parse("main").ok();
        let scout = AgentConfig { role: Some("scout".to_owned()), parent, ..main };
        config.agents.insert(AgentId::parse("scout").unwrap(), scout);
    })
    .await;
    let call = json!({"agent": "scout", "prompt": "watch the tide", "wait": false});
    fixture.model.respond_by_prompt(move |prompt, request| {
        let has_result = request.body["messages"].as_array().unwrap().iter().any(|message| message["role"] == "tool");
        match (prompt.ends_with("watch the tide"), has_result) {
            (true, _) => ScriptedResponse::silent_mid_stream("The tide"),
            (false, false) => ScriptedResponse::tool_call("c1", "spawn_agent", &call),
            (false, true) => ScriptedResponse::text("The scout watches."),
        }
    });
    let message_id = fixture.network.receive_text("ann", "have it watched");
    fixture.network.wait_for("the answer", |state| state.reactions_on(&message_id) == ["✅"]).await;
    loop {
        let at_work = fixture.engine.active_runs();
        if at_work.len() == 1 && at_work[0].parent.is_some() && at_work[0].state == "running" {
            break;
        }
        tokio::task::yield_now().await;
    }
    fixture.network.receive_text("ann", "/stop");
    fixture.network.wait_for_text("⏹ stopped in").await;
    let state = fixture.network.state();
    assert!(
        state.contains_text("Stopping your request.") && !state.contains_text("Nothing of yours"),
        "{:?}",
        state.texts()
    );
    fixture.shut_down().await;
}

/// Regression: memory consolidation was a task of its own, which no stop reached.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_finds_what_consolidates_the_memory_behind_an_answer() {
    let fixture = FlowFixture::start_with("", |config| config.memory.consolidate = true).await;
    fixture.model.respond_by_prompt(|prompt, _| match prompt.contains("worth remembering?") {
        true => ScriptedResponse::silent_mid_stream("{"),
        false => ScriptedResponse::text("It is red now."),
    });
    for (nth, stop) in ["/stop", "stop"].into_iter().enumerate() {
        let message_id = fixture.network.receive_text("ann", "please paint my boat red");
        fixture.network.wait_for("the answer", |state| state.reactions_on(&message_id) == ["✅"]).await;
        let request = 2 * nth + 1;
        fixture.model.request_at(request).wait_streaming().await;
        fixture.network.receive_text("bob", stop);
        fixture.network.receive_text("ann", stop);
        fixture.model.request_at(request).wait_client_left().await;
        assert_eq!(fixture.network.state().reactions_on(&message_id), ["✅"]);
    }
    // The request was answered, so a bare stop word, which may be meant for others, gets no reply.
    let of_notes = "Nothing of yours is running here any more. What was still being noted behind an answer is dropped.";
    let state =
        fixture.network.wait_for("the answer to the first stop", |state| state.texts().contains(&of_notes)).await;
    assert_eq!(state.texts().iter().filter(|text| text.contains("top")).count(), 0, "{state:#?}");
    fixture.shut_down().await;
}

/// Regression: runs that the page started have no chat, and a chat could not stop them.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_stops_what_the_page_started_in_chats() {
    let fixture = FlowFixture::start().await;
    fixture.model.respond_by_prompt(|_, _| ScriptedResponse::silent_mid_stream("hm"));
    for (session, sender, stop) in [("paper_room_root", "root", "/stop"), ("paper_room_ann", "root", "/stop all")] {
        let SubmitOutcome::Accepted(run) =
            fixture.engine.submit(&page_admin(), page_submission(session, "from the page")).await.unwrap()
        else {
            panic!("not new")
        };
        let live_run = fixture.engine.live_run(&run.run_id).unwrap();
        live_run.wait_for_progress(RunProgress::Started).await;
        fixture.network.receive_text("ann", "/stop");
        fixture.network.wait_for_text("Nothing of yours is running here.").await;
        assert!(live_run.verdict().is_none(), "{session}: it is not ann's");
        fixture.network.receive_text(sender, stop);
        live_run.wait_for_progress(RunProgress::Ended).await;
        assert!(matches!(live_run.verdict(), Some(Verdict::Aborted { .. })), "{session}");
    }
    fixture.shut_down().await;
}
