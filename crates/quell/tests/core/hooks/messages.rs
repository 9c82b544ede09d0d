//! Hooks that inspect, change or cancel messages of chat networks, and what becomes of a message when they fail.

use quell_protocol::channel::ChannelMessage;

use super::*;

pub(super) fn channel_message(content: &str) -> ChannelMessage {
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

/// Passes an incoming message through the hooks, as the message flow does.
pub(super) async fn ask_message_hook(test: &TestEngine, content: &str) -> MessageAnswer {
    let scope = new_scope();
    let asked = test.engine.hooks().filter_message(HookTrigger::for_received_message(channel_message(content)), &scope);
    let answer = tokio::time::timeout(WAIT_TIMEOUT, asked).await.expect("a hook delays the message").unwrap();
    tokio::time::timeout(WAIT_TIMEOUT, scope.close()).await.expect("a hook still holds resources");
    answer
}

fn changed_content(content: &str) -> MessageAnswer {
    MessageAnswer::Content(content.to_owned())
}

fn cancelled_because(reason: &str) -> MessageAnswer {
    MessageAnswer::Cancel { reason: reason.to_owned() }
}

/// Answers that commands and webhooks may give.
#[rstest]
#[case::nothing("", MessageAnswer::Unchanged)]
#[case::another_text(r#"{"content": "guten Tag ü"}"#, changed_content("guten Tag ü"))]
#[case::no_more(r#"{"cancel": "not here"}"#, cancelled_because("not here"))]
#[case::another_place(r#"{"content": "psst", "replyTarget": "eve", "channel": "matrix"}"#, changed_content("psst"))]
#[case::both(r#"{"content": "x", "cancel": "y"}"#, MessageAnswer::Unchanged)]
#[case::no_json("hello", MessageAnswer::Unchanged)]
#[case::blank(r#"{"content": " "}"#, MessageAnswer::Unchanged)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_means_the_same_from_a_command_and_from_a_webhook(
    #[case] says: &'static str,
    #[case] expected: MessageAnswer,
) {
    let receiver = HookReceiver::start().await;
    receiver.queue_replies([HookReceiverReply::Status(200, says)]);
    let test = start_engine(|hooks| {
        hooks.on_message_received = "cat answer".into();
        hooks.on_message_sending = receiver.url("").as_str().into();
        hooks.secret = Some(SECRET.to_owned().into());
    })
    .await;
    std::fs::write(test.test_dir.path().join("answer"), says).unwrap();
    assert_eq!(ask_message_hook(&test, "hello").await, expected, "the command");
    let sending = HookTrigger::for_outgoing_message(channel_message("question"), "hello".to_owned());
    assert_eq!(test.engine.hooks().filter_message(sending, &new_scope()).await, Ok(expected), "the webhook");
    let body = receiver.wait_received(1).await[0].verified_body();
    let facts = body.message.unwrap();
    assert_eq!((body.event, facts.content.as_str()), (HookEvent::MessageSending, "hello"));
    assert_eq!(facts.message, channel_message("question"));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_of_commands_sees_each_others_changes_and_ends_with_the_first_that_cancels() {
    let test = start_engine(|hooks| {
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
    assert_eq!(ask_message_hook(&test, "first").await, cancelled_because("enough"));
    let read = |name: &str| std::fs::read_to_string(test.test_dir.path().join(name));
    for (name, text) in [("first.json", "first"), ("second.json", "second"), ("third.json", "second")] {
        let body: HookBody = serde_json::from_str(&read(name).unwrap()).unwrap();
        let facts = body.message.unwrap();
        assert_eq!((facts.content.as_str(), facts.message.content.as_str()), (text, text), "{name}");
    }
    assert!(read("fourth.json").is_err());
    test.close().await;
}

#[rstest]
#[case::its_exit_code("echo '{\"cancel\": \"x\"}'; exit 1")]
#[case::its_signal("echo '{\"cancel\": \"x\"}'; kill -9 $$")]
#[case::its_time("sleep 600")]
#[case::its_length("yes ' ' | head -c 7000000; echo '{\"cancel\": \"x\"}'")]
#[case::no_end("yes")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_fails_changes_nothing(#[case] command: &str) {
    let test = start_engine(|hooks| {
        hooks.on_message_received = command.into();
        hooks.timeout_ms = if command.contains("head") { 20_000 } else { 300 };
    })
    .await;
    assert_eq!(ask_message_hook(&test, "hello").await, MessageAnswer::Unchanged);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_message_goes_through_a_command_whole() {
    let test = start_engine(|hooks| {
        hooks.on_message_received = "sed 's/.*\"content\":\"\\(x*\\)\".*/{\"content\": \"\\1y\"}/'".into();
    })
    .await;
    let long = "x".repeat(1_000_000);
    assert_eq!(ask_message_hook(&test, &long).await, changed_content(&(long + "y")));
    test.close().await;
}

#[rstest]
#[case::refusing(vec![HookReceiverReply::Status(403, r#"{"cancel": "x"}"#)], MessageAnswer::Unchanged)]
#[case::elsewhere(vec![HookReceiverReply::Redirect], MessageAnswer::Unchanged)]
#[case::silent(vec![HookReceiverReply::Hang], MessageAnswer::Unchanged)]
#[case::in_trouble(
    vec![HookReceiverReply::Status(502, ""), HookReceiverReply::Status(200, r#"{"content": "better"}"#)],
    changed_content("better")
)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_fails_changes_nothing_and_one_in_trouble_is_asked_again(
    #[case] replies: Vec<HookReceiverReply>,
    #[case] expected: MessageAnswer,
) {
    let receiver = HookReceiver::start().await;
    let count = replies.len();
    receiver.queue_replies(replies);
    let test = start_engine(|hooks| {
        hooks.on_message_received = receiver.url("").as_str().into();
        hooks.secret = Some(SECRET.to_owned().into());
        hooks.timeout_ms = if expected == MessageAnswer::Unchanged { 500 } else { 20_000 };
    })
    .await;
    assert_eq!(ask_message_hook(&test, "hello").await, expected);
    let requests = receiver.wait_received(count).await;
    assert_eq!(requests.len(), count);
    assert!(requests.iter().all(|request| request.verified_body() == requests[0].verified_body()), "{requests:#?}");
    test.close().await;
}
