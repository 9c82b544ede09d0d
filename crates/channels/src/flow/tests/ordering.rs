//! Order, fairness, interruption, debouncing and duplicates of messages.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use quell_engine::hooks::{LifecycleHook, MessageAnswer};
use quell_protocol::api::AccessLevel;
use quell_protocol::hook::{HookBody, HookEvent};
use quell_testkit::model::{ScriptedResponse, ScriptedStream};
use serde_json::Value;

use super::super::channel_caller;
use super::{FlowFixture, gated_tool_call, page_submission};

/// The user's messages without the lines that tell their times.
fn user_messages(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().unwrap().iter();
    let users = messages.filter(|message| message["role"] == "user");
    let without_times = |text: &str| {
        text.split("\n\n").filter(|paragraph| !paragraph.starts_with("[Sent ")).collect::<Vec<_>>().join("\n\n")
    };
    users.map(|message| without_times(message["content"].as_str().unwrap())).collect()
}

/// Regression: two turns of one conversation read different histories.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_conversation_are_answered_one_after_the_other_on_what_was_said_before() {
    let fixture = FlowFixture::start().await;
    fixture.model.script(ScriptedResponse::text("One.")).script(ScriptedResponse::text("Two."));
    fixture.network.receive_text("ann", "first");
    fixture.network.receive_text("ann", "second");
    fixture.network.wait_for("both answers", |state| state.texts() == ["One.", "Two."]).await;
    let second = fixture.model.request_at(1).wait_arrived().await.body.to_string();
    assert!(second.contains("first") && second.contains("One."), "{second}");
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_messages_share_the_prefix_of_their_prompts_byte_for_byte() {
    let fixture = FlowFixture::start().await;
    for answer in ["One.", "Two.", "Three."] {
        fixture.model.script(ScriptedResponse::text(answer));
    }
    for (text, answer) in [("first", "One."), ("second", "Two."), ("third", "Three.")] {
        fixture.network.receive_text("ann", text);
        fixture.network.wait_for("the answer", |state| state.contains_text(answer)).await;
    }
    let requests: Vec<Value> = fixture.model.recorded_requests().iter().map(|request| request.body.clone()).collect();
    let sealed = |request: &Value| {
        let messages = request["messages"].as_array().unwrap();
        serde_json::to_string(&messages[..messages.len() - 1]).unwrap()
    };
    let (second, third) = (sealed(&requests[1]), sealed(&requests[2]));
    assert!(third.starts_with(&second[..second.len() - 1]), "\n{second}\n{third}");
    assert!(!third.contains("Channel context"), "what rides with a message is never stored: {third}");
    for request in &requests {
        assert!(
            user_messages(request)
                .last()
                .unwrap()
                .contains("Channel context: channel=paper, reply_target=room, sender=ann")
        );
    }
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interruption_waits_for_the_whole_chain_before_it() {
    let fixture = FlowFixture::start_with("interrupt_on_new_message = true", |_| {}).await;
    fixture.start_silent_run("a", "working").await;
    fixture.network.wait_for_text("working").await;
    fixture.model.respond_by_prompt(|prompt, _| match prompt.ends_with('c') {
        true => ScriptedResponse::text("Done."),
        false => ScriptedResponse::silent_mid_stream("still working"),
    });
    fixture.network.receive_text("ann", "b");
    fixture.network.receive_text("ann", "c");
    fixture.network.wait_for_text("Done.").await;
    fixture.network.wait_for_text("working\n\n⏹ Stopped: you wrote again.").await;
    fixture.model.request_at(0).wait_client_left().await;
    let requests = fixture.model.recorded_requests();
    let last = user_messages(&requests.last().unwrap().body);
    assert!(last.last().unwrap().ends_with('c'), "{last:?}");
    fixture.model.assert_histories_valid();
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_and_new_words_are_one_message_when_nothing_came_of_the_old_ones() {
    let fixture = FlowFixture::start_with("interrupt_on_new_message = true", |_| {}).await;
    fixture.model.script(ScriptedStream::new().hold_headers("never"));
    fixture.network.receive_text("ann", "안녕");
    fixture.model.request_at(0).wait_arrived().await;
    fixture.ask("ann", "무시해", "네").await;
    let prompts = user_messages(&fixture.model.request_at(1).wait_arrived().await.body);
    assert_eq!(prompts.len(), 1);
    assert!(prompts[0].ends_with("안녕\n\n무시해"), "{prompts:?}");
    assert!(prompts[0].contains("The user wrote again before the request above was begun"), "{prompts:?}");
    assert!(!fixture.network.state().contains_text("stopped in"), "an interruption has no receipt in the chat");
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_told_again_is_answered_once() {
    let fixture = FlowFixture::start().await;
    fixture.model.script(ScriptedResponse::text("One."));
    let inbound = fixture.network.inbound_message("room", "ann", "hello");
    for _ in 0..3 {
        fixture.network.receive_message(inbound.clone());
    }
    fixture.network.wait_for("the answer", |state| state.texts() == ["One."] && state.inbound_count == 3).await;
    assert_eq!(fixture.model.request_count(), 1);
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn words_that_follow_each_other_are_one_message_where_that_is_wanted() {
    let fixture = FlowFixture::start_with("debounce_ms = 300", |_| {}).await;
    fixture.model.script(ScriptedResponse::text("One."));
    for text in ["hello", "are you", "there?"] {
        fixture.network.receive_text("ann", text);
    }
    fixture.network.wait_for("the answer", |state| state.texts() == ["One."]).await;
    let prompts = user_messages(&fixture.model.request_at(0).wait_arrived().await.body);
    assert!(prompts[0].ends_with("hello\nare you\nthere?"), "{prompts:?}");
    assert_eq!(fixture.model.request_count(), 1);
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steered_message_reaches_the_run_at_its_next_step() {
    let fixture = FlowFixture::start_with("on_busy = \"steer\"", |_| {}).await;
    fixture.model.script(gated_tool_call("steered")).script(ScriptedResponse::text("Both."));
    fixture.network.receive_text("ann", "first");
    fixture.model.request_at(0).wait_arrived().await;
    let second = fixture.network.receive_text("ann", "and also this");
    // Only a stored message steers, and gets a reaction.
    fixture.network.wait_for("its first sign", |state| !state.reactions_on(&second).is_empty()).await;
    fixture.model.open_gate("steered");
    fixture.network.wait_for_text("Both.").await;
    let prompts = user_messages(&fixture.model.request_at(1).wait_arrived().await.body);
    assert!(prompts.last().unwrap().ends_with("and also this"), "{prompts:?}");
    fixture.network.wait_for("its sign", |state| state.reactions_on(&second) == ["✅"]).await;
    fixture.shut_down().await;
}

/// Regressions: the message with files steered the active run without them and without any hook; the message behind it
/// was answered before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_files_steers_nothing_and_is_answered_in_its_turn() {
    let fixture = FlowFixture::start_with("on_busy = \"steer\"", |_| {}).await;
    fixture.model.script(gated_tool_call("more"));
    for answer in ["First.", "Second.", "Third."] {
        fixture.model.script(ScriptedResponse::text(answer));
    }
    fixture.network.receive_text("ann", "first");
    fixture.model.request_at(0).wait_arrived().await;
    fixture.network.receive_message(fixture.inbound_with_file("ann", "contents"));
    fixture.network.receive_text("ann", "no, the other one");
    fixture.wait_for_active_runs(3).await;
    fixture.model.open_gate("more");
    fixture.network.wait_for("all answers", |state| state.texts() == ["First.", "Second.", "Third."]).await;
    for (request, ending) in [(2, "notes.txt]"), (3, "no, the other one")] {
        let prompts = user_messages(&fixture.model.request_at(request).wait_arrived().await.body);
        assert!(prompts.last().unwrap().ends_with(ending), "{prompts:?}");
    }
    fixture.shut_down().await;
}

/// Regression: the message steered the page's run, and the chat got no answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_in_its_chat_although_the_page_is_at_work_in_its_session() {
    let fixture = FlowFixture::start_with("on_busy = \"steer\"", |_| {}).await;
    fixture
        .model
        .script(gated_tool_call("more"))
        .script(ScriptedResponse::text("On the page."))
        .script(ScriptedResponse::text("In the chat."));
    let submission = page_submission("paper_room_ann", "look after this");
    // Submitted as ann, so that a missing right is not the reason that her message stays out of the run.
    fixture.engine.submit(&channel_caller("paper", "ann", AccessLevel::Write), submission).await.unwrap();
    fixture.model.request_at(0).wait_arrived().await;
    fixture.network.receive_text("ann", "book it");
    fixture.wait_for_active_runs(2).await;
    fixture.model.open_gate("more");
    fixture.network.wait_for("the answer", |state| state.texts() == ["In the chat."]).await;
    fixture.shut_down().await;
}

struct RedactingHook;

impl LifecycleHook for RedactingHook {
    fn name(&self) -> &str {
        "discreet"
    }

    fn wants(&self, event: HookEvent) -> bool {
        event == HookEvent::MessageReceived
    }

    fn on_message<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, MessageAnswer> {
        let hidden = body.message.as_ref().unwrap().content.replace("4711", "[hidden]");
        ready(MessageAnswer::Content(hidden)).boxed()
    }
}

/// Regression: the message steered the active run without the hooks.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_hooks_want_to_see_steers_nothing_and_is_answered_as_they_left_it() {
    let fixture =
        FlowFixture::start_with("on_busy = \"steer\"", |config| config.lifecycle_hooks.push(Arc::new(RedactingHook)))
            .await;
    fixture
        .model
        .script(gated_tool_call("more"))
        .script(ScriptedResponse::text("First."))
        .script(ScriptedResponse::text("Second."));
    fixture.network.receive_text("ann", "first");
    fixture.model.request_at(0).wait_arrived().await;
    fixture.network.receive_text("ann", "my number is 4711");
    fixture.network.wait_for("both", |state| state.inbound_count == 2).await;
    fixture.wait_for_active_runs(2).await;
    fixture.model.open_gate("more");
    fixture.network.wait_for("both answers", |state| state.texts() == ["First.", "Second."]).await;
    let requests = fixture.model.recorded_requests();
    let last = user_messages(&requests[2].body);
    assert!(last.last().unwrap().ends_with("my number is [hidden]"), "{last:?}");
    for request in &requests {
        assert!(!request.body.to_string().contains("4711"), "no model was told: {:#}", request.body);
    }
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_sender_keeps_nobody_else_waiting() {
    let fixture = FlowFixture::start().await;
    fixture.model.respond_by_prompt(|_, _| ScriptedResponse::text("Served."));
    for number in 0..10_000 {
        fixture.network.receive_text_in("flood", "flood", &format!("{number}"));
        if number % 100 == 0 {
            fixture.network.receive_text_in(&format!("room {number}"), &format!("sender {number}"), "hello");
        }
    }
    fixture.network.receive_text_in("urgent", "late", "/stop");
    fixture.network.wait_for_text("Nothing of yours is running here.").await;
    let state = fixture
        .network
        .wait_for("everybody", |state| {
            (0..100).all(|number| {
                state
                    .messages
                    .iter()
                    .any(|it| it.address.target == format!("room {}", number * 100) && it.text == "Served.")
            })
        })
        .await;
    assert!(state.messages.iter().any(|it| it.address.target == "flood" && it.text == "Served."));
    assert!(state.contains_text("Too many of your messages are waiting"));
    fixture.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn senders_that_are_not_allowed_are_ignored() {
    let fixture = FlowFixture::start().await;
    let mut settings = fixture.live_settings.current().settings.clone();
    settings.channels.get_mut("paper").unwrap().allow = vec!["ann".to_owned()];
    fixture.live_settings.replace(settings);
    fixture.network.wait_for("the new listener", |state| state.connections == 2).await;
    fixture.model.script(ScriptedResponse::text("Hello."));
    fixture.network.receive_text("bob", "hello");
    fixture.network.receive_text("bob", "/stop");
    fixture.network.receive_text("quell", "I am the account itself");
    fixture.network.receive_text("ann", "hello");
    fixture.network.wait_for("the answer", |state| state.texts() == ["Hello."]).await;
    assert_eq!(fixture.model.request_count(), 1);
    fixture.shut_down().await;
}
