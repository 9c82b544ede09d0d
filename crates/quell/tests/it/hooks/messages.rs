//! Hooks that are asked about messages of chat networks: what commands and webhooks are told, what they may change, and what
//! becomes of a message when they fail.

use std::time::Instant;

use quell_engine::hooks::{Happening, MessageAnswer};
use quell_engine::scope::Cancelled;
use quell_protocol::ResourceKind;
use quell_protocol::channel::ChannelMessage;
use quell_protocol::hook::{HookBody, HookEvent};
use quell_testkit::commands::{self, Marker};
use rstest::rstest;

use super::receiver::{Manner, ReceivingServer, SECRET};
use super::{SOON, deaf_with_child, house, is_deaf, lines, patient_house, scope};
use crate::harness::{House, PATIENCE};

pub(super) fn message(content: &str) -> ChannelMessage {
    ChannelMessage {
        channel: "irc".to_owned(),
        id: "7".to_owned(),
        sender: "alice".to_owned(),
        sender_name: None,
        reply_target: "#lab".to_owned(),
        content: content.to_owned(),
        thread: None,
        scope_id: None,
        group: true,
        attachments: Vec::new(),
    }
}

/// Asks about a message that has come, as the message flow does.
async fn received(house: &House, content: &str) -> MessageAnswer {
    let scope = scope();
    let asked = house.engine.hooks().ask_message(Happening::of_received(message(content)), &scope);
    let answer = tokio::time::timeout(PATIENCE, asked).await.expect("a hook holds the message up").unwrap();
    tokio::time::timeout(PATIENCE, scope.close()).await.expect("something of a hook is still held");
    answer
}

fn changed(content: &str) -> MessageAnswer {
    MessageAnswer::Content(content.to_owned())
}

fn cancelled(reason: &str) -> MessageAnswer {
    MessageAnswer::Cancel { reason: reason.to_owned() }
}

/// What both commands and webhooks may answer.
#[rstest]
#[case::nothing("", MessageAnswer::Unchanged)]
#[case::blanks(" \n", MessageAnswer::Unchanged)]
#[case::an_empty_object("{}", MessageAnswer::Unchanged)]
#[case::another_text(r#"{"content": "guten Tag ü"}"#, changed("guten Tag ü"))]
#[case::lines("{\n \"content\": \"a\\nb\"\n}\n", changed("a\nb"))]
#[case::no_more(r#"{"cancel": "not here"}"#, cancelled("not here"))]
#[case::another_place(r#"{"content": "psst", "replyTarget": "eve", "channel": "matrix"}"#, changed("psst"))]
#[case::only_another_place(r#"{"message": {"replyTarget": "eve"}}"#, MessageAnswer::Unchanged)]
#[case::both(r#"{"content": "x", "cancel": "y"}"#, MessageAnswer::Unchanged)]
#[case::no_json("hello", MessageAnswer::Unchanged)]
#[case::another_type(r#"{"content": 7}"#, MessageAnswer::Unchanged)]
#[case::more_than_one(r#"{"content": "x"} {"content": "y"}"#, MessageAnswer::Unchanged)]
#[case::blank(r#"{"content": " "}"#, MessageAnswer::Unchanged)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_means_the_same_from_a_command_and_from_a_webhook(
    #[case] says: &'static str,
    #[case] expected: MessageAnswer,
) {
    let receiver = ReceivingServer::start().await;
    receiver.answers([Manner::Status(200, says)]);
    let house = house(|hooks| {
        hooks.on_message_received = "cat answer".into();
        hooks.on_message_sending = receiver.url("").as_str().into();
        hooks.secret = Some(SECRET.to_owned().into());
    })
    .await;
    std::fs::write(house.dir.path().join("answer"), says).unwrap();
    assert_eq!(received(&house, "hello").await, expected, "the command");
    let sending = Happening::of_sending(message("question"), "hello".to_owned());
    assert_eq!(house.engine.hooks().ask_message(sending, &scope()).await, Ok(expected), "the webhook");
    let body = receiver.came(1).await[0].checked();
    let facts = body.message.unwrap();
    assert_eq!((body.event, facts.content.as_str()), (HookEvent::MessageSending, "hello"));
    assert_eq!(facts.message, message("question"));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_of_commands_sees_each_others_changes_and_ends_with_the_first_that_cancels() {
    let house = house(|hooks| {
        hooks.on_message_received.0 = [
            "cat > first.json; echo '{\"content\": \"second\"}'",
            "cat > second.json; echo '{\"content\": \"third\"}'; exit 1",
            "cat > third.json; echo '{\"cancel\": \"enough\"}'",
            "cat > fourth.json",
        ]
        .map(str::to_owned)
        .to_vec();
    })
    .await;
    assert_eq!(received(&house, "first").await, cancelled("enough"));
    let read = |name: &str| std::fs::read_to_string(house.dir.path().join(name));
    for (name, text) in [("first.json", "first"), ("second.json", "second"), ("third.json", "second")] {
        let body: HookBody = serde_json::from_str(&read(name).unwrap()).unwrap();
        let facts = body.message.unwrap();
        assert_eq!((facts.content.as_str(), facts.message.content.as_str()), (text, text), "{name}");
    }
    assert!(read("fourth.json").is_err());
    house.close().await;
}

#[rstest]
#[case::its_exit_code("echo '{\"cancel\": \"x\"}'; exit 1")]
#[case::its_signal("echo '{\"cancel\": \"x\"}'; kill -9 $$")]
#[case::its_time("sleep 600")]
#[case::its_length("yes ' ' | head -c 7000000; echo '{\"cancel\": \"x\"}'")]
#[case::no_end("yes")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_fails_changes_nothing(#[case] command: &str) {
    let house = house(|hooks| {
        hooks.on_message_received = command.into();
        hooks.timeout_ms = if command.contains("head") { 20_000 } else { 300 };
    })
    .await;
    assert_eq!(received(&house, "hello").await, MessageAnswer::Unchanged);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_message_goes_through_a_command_whole() {
    let house = house(|hooks| {
        hooks.on_message_received = "sed 's/.*\"content\":\"\\(x*\\)\".*/{\"content\": \"\\1y\"}/'".into();
    })
    .await;
    let long = "x".repeat(1_000_000);
    assert_eq!(received(&house, &long).await, changed(&(long + "y")));
    house.close().await;
}

#[rstest]
#[case::refusing(Manner::Status(403, r#"{"cancel": "x"}"#))]
#[case::elsewhere(Manner::Elsewhere)]
#[case::silent(Manner::Hang)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_fails_changes_nothing(#[case] manner: Manner) {
    let receiver = ReceivingServer::start().await;
    receiver.answers([manner]);
    let house = house(|hooks| {
        hooks.on_message_received = receiver.url("").as_str().into();
        hooks.secret = Some(SECRET.to_owned().into());
        hooks.timeout_ms = 500;
    })
    .await;
    assert_eq!(received(&house, "hello").await, MessageAnswer::Unchanged);
    assert_eq!(receiver.came(1).await.len(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_in_trouble_is_asked_about_the_message_again() {
    let receiver = ReceivingServer::start().await;
    receiver.answers([Manner::Status(502, ""), Manner::Status(200, r#"{"content": "better"}"#)]);
    let house = house(|hooks| {
        hooks.on_message_received = receiver.url("").as_str().into();
        hooks.secret = Some(SECRET.to_owned().into());
        hooks.timeout_ms = 20_000;
    })
    .await;
    assert_eq!(received(&house, "hello").await, changed("better"));
    let came = receiver.came(2).await;
    assert_eq!(came[0].checked(), came[1].checked());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_kills_what_is_asked_about_a_message_with_all_that_it_has_started() {
    let mark = Marker::new();
    let house = patient_house(|hooks| {
        hooks.on_message_sending = deaf_with_child(&mark).as_str().into();
        hooks.timeout_ms = 60_000;
    })
    .await;
    let scope = scope();
    let (hooks, own) = (house.engine.hooks().clone(), scope.clone());
    let sending = Happening::of_sending(message("question"), "answer".to_owned());
    let asking = tokio::spawn(async move { hooks.ask_message(sending, &own).await });
    is_deaf(&house, &mark).await;
    let begun = Instant::now();
    scope.cancel();
    assert_eq!(tokio::time::timeout(SOON, asking).await.unwrap().unwrap(), Err(Cancelled));
    tokio::time::timeout(SOON, scope.close()).await.unwrap();
    // A deaf command would have its minute from SIGTERM on.
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(mark.survivors().len(), 0, "{:#?}", mark.survivors());
    let held: Vec<_> = scope.ledger().rows().iter().map(|row| (row.kind, row.how)).collect();
    assert_eq!(held, [(ResourceKind::Hook, "cancelled"), (ResourceKind::Process, "kill")]);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_about_a_message_and_leaves_leaves_no_process() {
    let mark = Marker::new();
    let house = house(|hooks| hooks.on_message_received = commands::ignores_signals(&mark).as_str().into()).await;
    let scope = scope();
    {
        let asking = house.engine.hooks().ask_message(Happening::of_received(message("x")), &scope);
        tokio::select! {
            answer = asking => panic!("{answer:?}"),
            () = mark.at_least(1) => {}
        }
    }
    tokio::time::timeout(SOON, scope.close()).await.unwrap();
    assert_eq!(mark.survivors().len(), 0, "{:#?}", mark.survivors());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_knows_which_event_it_is_asked_at() {
    let house = house(|hooks| {
        let note = "printf '%s\\n' \"$QUELL_HOOK\" \"$QUELL_RUN_ID\" >> env.txt";
        hooks.on_message_received = note.into();
        hooks.on_message_sending = note.into();
    })
    .await;
    received(&house, "question").await;
    let sending = Happening::of_sending(message("question"), "answer".to_owned());
    assert_eq!(house.engine.hooks().ask_message(sending, &scope()).await, Ok(MessageAnswer::Unchanged));
    let env = lines(&house.dir.path().join("env.txt"), 4).await;
    assert_eq!((env[0].as_str(), env[2].as_str()), ("on_message_received", "on_message_sending"));
    assert!(env[1].starts_with("hook-") && env[3].starts_with("hook-"), "no run has caused it: {env:?}");
    house.close().await;
}
