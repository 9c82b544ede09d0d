//! Order, fairness, interruption and what a repeat is worth.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use quell_engine::dispatch::{StopText, Submission};
use quell_engine::hooks::{LifecycleHook, MessageAnswer};
use quell_protocol::SessionKey;
use quell_protocol::api::{OnBusy, Scope};
use quell_protocol::hook::{HookBody, HookEvent};
use quell_testkit::model::{Behaviour, Stream};
use serde_json::Value;

use super::super::caller;
use super::House;

fn users(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().unwrap().iter();
    let users = messages.filter(|message| message["role"] == "user");
    users.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

/// Two turns of one conversation read different histories.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_conversation_are_answered_one_after_the_other_on_what_was_said_before() {
    let house = House::open().await;
    house.model.script(Behaviour::text("One.")).script(Behaviour::text("Two."));
    house.paper.say("ann", "first");
    house.paper.say("ann", "second");
    house.paper.wait_for("both answers", |page| page.texts() == ["One.", "Two."]).await;
    let second = house.model.request(1).arrived().await.body.to_string();
    assert!(second.contains("first") && second.contains("One."), "{second}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_messages_share_the_prefix_of_their_prompts_byte_for_byte() {
    let house = House::open().await;
    for answer in ["One.", "Two.", "Three."] {
        house.model.script(Behaviour::text(answer));
    }
    for (text, answer) in [("first", "One."), ("second", "Two."), ("third", "Three.")] {
        house.paper.say("ann", text);
        house.paper.wait_for("the answer", |page| page.says(answer)).await;
    }
    let requests: Vec<Value> = house.model.seen().iter().map(|request| request.body.clone()).collect();
    let sealed = |request: &Value| {
        let messages = request["messages"].as_array().unwrap();
        serde_json::to_string(&messages[..messages.len() - 1]).unwrap()
    };
    let (second, third) = (sealed(&requests[1]), sealed(&requests[2]));
    assert!(third.starts_with(&second[..second.len() - 1]), "\n{second}\n{third}");
    assert!(!third.contains("Channel context"), "what rides with a message is never stored: {third}");
    for request in &requests {
        assert!(
            users(request).last().unwrap().contains("Channel context: channel=paper, reply_target=room, sender=ann")
        );
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interruption_waits_for_the_whole_chain_before_it() {
    let house = House::with("interrupt_on_new_message = true", |_| {}).await;
    house.model.script(Behaviour::silent_mid_stream("working"));
    house.paper.say("ann", "a");
    house.model.request(0).streaming().await;
    house.model.by_prompt(|prompt, _| match prompt.ends_with('c') {
        true => Behaviour::text("Done."),
        false => Behaviour::silent_mid_stream("still working"),
    });
    house.paper.say("ann", "b");
    house.paper.say("ann", "c");
    house.paper.wait_for("the last answer", |page| page.says("Done.")).await;
    house.model.request(0).client_left().await;
    let requests = house.model.seen();
    let last = users(&requests.last().unwrap().body);
    assert!(last.last().unwrap().ends_with('c'), "{last:?}");
    house.model.assert_histories_valid();
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_and_new_words_are_one_message_when_nothing_came_of_the_old_ones() {
    let house = House::with("interrupt_on_new_message = true", |_| {}).await;
    house.model.script(Stream::new().hold_headers("never"));
    house.paper.say("ann", "안녕");
    house.model.request(0).arrived().await;
    house.model.script(Behaviour::text("네"));
    house.paper.say("ann", "무시해");
    house.paper.wait_for("the answer", |page| page.says("네")).await;
    let said = users(&house.model.request(1).arrived().await.body);
    assert_eq!(said.len(), 1);
    assert!(said[0].ends_with("안녕\n\n무시해"), "{said:?}");
    assert!(said[0].contains("The user wrote again before the request above was begun"), "{said:?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_told_again_is_answered_once() {
    let house = House::open().await;
    house.model.script(Behaviour::text("One."));
    let heard = house.paper.heard("room", "ann", "hello");
    for _ in 0..3 {
        house.paper.tell(heard.clone());
    }
    house.paper.wait_for("the answer", |page| page.texts() == ["One."] && page.told == 3).await;
    assert_eq!(house.model.request_count(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn words_that_follow_each_other_are_one_message_where_that_is_wanted() {
    let house = House::with("debounce_ms = 300", |_| {}).await;
    house.model.script(Behaviour::text("One."));
    for text in ["hello", "are you", "there?"] {
        house.paper.say("ann", text);
    }
    house.paper.wait_for("the answer", |page| page.texts() == ["One."]).await;
    let said = users(&house.model.request(0).arrived().await.body);
    assert!(said[0].ends_with("hello\nare you\nthere?"), "{said:?}");
    assert_eq!(house.model.request_count(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steered_message_reaches_the_run_at_its_next_step() {
    let house = House::with("on_busy = \"steer\"", |_| {}).await;
    let call = Stream::new().wait_for("steered").tool_call("c1", "recall", &serde_json::json!({"query": "x"}));
    house.model.script(call).script(Behaviour::text("Both."));
    house.paper.say("ann", "first");
    house.model.request(0).arrived().await;
    let second = house.paper.say("ann", "and also this");
    // Only what is in the database steers, and bears a sign.
    house.paper.wait_for("its first sign", |page| !page.signs_on(&second).is_empty()).await;
    house.model.open_gate("steered");
    house.paper.wait_for("the answer", |page| page.says("Both.")).await;
    let said = users(&house.model.request(1).arrived().await.body);
    assert!(said.last().unwrap().ends_with("and also this"), "{said:?}");
    house.paper.wait_for("its sign", |page| page.signs_on(&second) == ["✅"]).await;
    house.close().await;
}

/// It joined the run at work without its files, and past every hook.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_files_steers_nothing_and_is_answered_with_them() {
    let house = House::with("on_busy = \"steer\"", |_| {}).await;
    house.model.script(Stream::new().wait_for("more").text("First."));
    house.paper.say("ann", "first");
    house.model.request(0).arrived().await;
    let mut heard = house.paper.heard("room", "ann", "look");
    heard.attachments.push(quell_protocol::Attachment {
        kind: quell_protocol::AttachmentKind::File,
        source: "contents".to_owned(),
        name: Some("notes.txt".to_owned()),
        media_type: None,
        bytes: None,
    });
    house.model.script(Behaviour::text("Second."));
    house.paper.tell(heard);
    house.paper.wait_for("both", |page| page.told == 2).await;
    while house.engine.active_runs().len() < 2 {
        tokio::task::yield_now().await;
    }
    house.model.open_gate("more");
    house.paper.wait_for("the second answer", |page| page.says("Second.")).await;
    let said = users(&house.model.request(1).arrived().await.body);
    assert!(said.last().unwrap().contains("notes.txt]"), "{said:?}");
    house.close().await;
}

/// It was read and answered before the message with files, which was said first.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_after_a_message_with_files_is_answered_after_it() {
    let house = House::with("on_busy = \"steer\"", |_| {}).await;
    let call = Stream::new().wait_for("more").tool_call("c1", "recall", &serde_json::json!({"query": "x"}));
    house.model.script(call);
    for answer in ["First.", "Second.", "Third."] {
        house.model.script(Behaviour::text(answer));
    }
    house.paper.say("ann", "first");
    house.model.request(0).arrived().await;
    let mut heard = house.paper.heard("room", "ann", "look");
    heard.attachments.push(quell_protocol::Attachment {
        kind: quell_protocol::AttachmentKind::File,
        source: "contents".to_owned(),
        name: Some("notes.txt".to_owned()),
        media_type: None,
        bytes: None,
    });
    house.paper.tell(heard);
    house.paper.say("ann", "no, the other one");
    while house.engine.active_runs().len() < 3 {
        tokio::task::yield_now().await;
    }
    house.model.open_gate("more");
    house.paper.wait_for("all answers", |page| page.texts() == ["First.", "Second.", "Third."]).await;
    let said = users(&house.model.request(3).arrived().await.body);
    assert!(said.last().unwrap().ends_with("no, the other one"), "{said:?}");
    house.close().await;
}

/// It joined the run of the page, and nothing was answered in the chat.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_in_its_chat_although_the_page_is_at_work_in_its_session() {
    let house = House::with("on_busy = \"steer\"", |_| {}).await;
    let call = Stream::new().wait_for("more").tool_call("c1", "recall", &serde_json::json!({"query": "x"}));
    house.model.script(call).script(Behaviour::text("On the page.")).script(Behaviour::text("In the chat."));
    let page = Submission {
        session: SessionKey::parse("paper_room_ann").unwrap(),
        text: "look after this".to_owned(),
        agent: None,
        idempotency_key: None,
        on_busy: OnBusy::Queue,
        timeout: None,
        stop_text: StopText::Literal,
        errand: None,
    };
    // Of ann herself, so that it is not the missing right that keeps her message out of it.
    house.engine.submit(&caller("paper", "ann", Scope::Write), page).await.unwrap();
    house.model.request(0).arrived().await;
    house.paper.say("ann", "book it");
    while house.engine.active_runs().len() < 2 {
        tokio::task::yield_now().await;
    }
    house.model.open_gate("more");
    house.paper.wait_for("the answer", |page| page.texts() == ["In the chat."]).await;
    house.close().await;
}

/// Hides what is secret from the model.
struct Discreet;

impl LifecycleHook for Discreet {
    fn name(&self) -> &str {
        "discreet"
    }

    fn wants(&self, event: HookEvent) -> bool {
        event == HookEvent::MessageReceived
    }

    fn on_message_received<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, MessageAnswer> {
        let hidden = body.message.as_ref().unwrap().content.replace("4711", "[hidden]");
        ready(MessageAnswer::Content(hidden)).boxed()
    }
}

/// It joined the run at work past the hooks.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_hooks_want_to_see_steers_nothing_and_is_answered_as_they_left_it() {
    let house = House::with("on_busy = \"steer\"", |config| config.lifecycle.push(Arc::new(Discreet))).await;
    let call = Stream::new().wait_for("more").tool_call("c1", "recall", &serde_json::json!({"query": "x"}));
    house.model.script(call).script(Behaviour::text("First.")).script(Behaviour::text("Second."));
    house.paper.say("ann", "first");
    house.model.request(0).arrived().await;
    house.paper.say("ann", "my number is 4711");
    house.paper.wait_for("both", |page| page.told == 2).await;
    while house.engine.active_runs().len() < 2 {
        tokio::task::yield_now().await;
    }
    house.model.open_gate("more");
    house.paper.wait_for("both answers", |page| page.texts() == ["First.", "Second."]).await;
    let requests = house.model.seen();
    let last = users(&requests[2].body);
    assert!(last.last().unwrap().ends_with("my number is [hidden]"), "{last:?}");
    for request in &requests {
        assert!(!request.body.to_string().contains("4711"), "no model was told: {:#}", request.body);
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_sender_keeps_nobody_else_waiting() {
    let house = House::open().await;
    house.model.by_prompt(|_, _| Behaviour::text("Served."));
    for number in 0..10_000 {
        house.paper.say_in("flood", "flood", &format!("{number}"));
        if number % 100 == 0 {
            house.paper.say_in(&format!("room {number}"), &format!("sender {number}"), "hello");
        }
    }
    let begun = std::time::Instant::now();
    house.paper.say_in("urgent", "late", "/stop");
    house.paper.wait_for("the stop's answer", |page| page.says("Nothing of yours is running here.")).await;
    let answered = begun.elapsed();
    let page = house
        .paper
        .wait_for("everybody", |page| {
            (0..100).all(|number| {
                page.written
                    .iter()
                    .any(|it| it.place.target == format!("room {}", number * 100) && it.text == "Served.")
            })
        })
        .await;
    assert!(page.written.iter().any(|it| it.place.target == "flood" && it.text == "Served."));
    assert!(page.says("Too many of your messages are waiting"));
    assert!(answered < Duration::from_secs(10), "{answered:?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_allowed_is_not_heard() {
    let house = House::open().await;
    let mut settings = house.live.now().settings.clone();
    settings.channels.get_mut("paper").unwrap().allow = vec!["ann".to_owned()];
    house.live.replace(settings);
    house.paper.wait_for("the new listener", |page| page.connected == 2).await;
    house.model.script(Behaviour::text("Hello."));
    house.paper.say("bob", "hello");
    house.paper.say("bob", "/stop");
    house.paper.say("quell", "I am the account itself");
    house.paper.say("ann", "hello");
    house.paper.wait_for("the answer", |page| page.texts() == ["Hello."]).await;
    assert_eq!(house.model.request_count(), 1);
    house.close().await;
}
