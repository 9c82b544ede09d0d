//! Message hooks of embedding programs: their chain, its end, and hooks that fail to answer.

use super::*;

/// Answers each text with a function of the test, and records its calls.
struct EditingHook {
    name: &'static str,
    answer: fn(&str) -> MessageAnswer,
    /// The text for which it never answers.
    hangs: &'static str,
    received: Arc<Mutex<Vec<(&'static str, HookBody)>>>,
}

impl LifecycleHook for EditingHook {
    fn name(&self) -> &str {
        self.name
    }

    fn on_message<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, MessageAnswer> {
        async {
            self.received.lock().unwrap().push((self.name, body.clone()));
            let content = &body.message.as_ref().unwrap().content;
            if content == self.hangs {
                pending::<()>().await;
            }
            (self.answer)(content)
        }
        .boxed()
    }
}

/// Two hooks: the first answers as the test says, the second changes nothing.
struct MessageHookFixture {
    hooks: Hooks,
    scope: Scope,
    received: Arc<Mutex<Vec<(&'static str, HookBody)>>>,
    _dir: TempDir,
}

fn message_fixture(answers: fn(&str) -> MessageAnswer) -> MessageHookFixture {
    let received = Arc::default();
    let editor = |name, answers, hangs| {
        Arc::new(EditingHook { name, answer: answers, hangs, received: Arc::clone(&received) })
            as Arc<dyn LifecycleHook>
    };
    let lifecycle = vec![editor("first", answers, "hang"), editor("second", |_| MessageAnswer::Unchanged, "")];
    let (hooks, scope, dir) = build_hooks(HookSettings::default(), lifecycle);
    MessageHookFixture { hooks, scope, received, _dir: dir }
}

fn message(content: &str) -> ChannelMessage {
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

impl MessageHookFixture {
    async fn filter_received(&self, content: &str) -> MessageAnswer {
        self.hooks.filter_message(HookTrigger::for_received_message(message(content)), &self.scope).await.unwrap()
    }

    /// For each call: the hook, the text that it got, and the text in the message.
    fn received_texts(&self) -> Vec<(&'static str, String, String)> {
        let received = self.received.lock().unwrap();
        let facts = received.iter().map(|(name, body)| (*name, body.message.clone().unwrap()));
        facts.map(|(name, facts)| (name, facts.content, facts.message.content)).collect()
    }
}

fn changed_to(content: &str) -> MessageAnswer {
    MessageAnswer::Content(content.to_owned())
}

fn text_seen_by(name: &'static str, content: &str, message: &str) -> (&'static str, String, String) {
    (name, content.to_owned(), message.to_owned())
}

#[tokio::test]
async fn the_next_hook_sees_what_the_one_before_made_of_a_message() {
    let fixture = message_fixture(|content| changed_to(&content.replace("secret", "...")));
    assert_eq!(fixture.filter_received("a secret").await, changed_to("a ..."));
    assert_eq!(
        fixture.received_texts(),
        [text_seen_by("first", "a secret", "a secret"), text_seen_by("second", "a ...", "a ...")]
    );
    let received = fixture.received.lock().unwrap();
    assert_eq!((received[0].1.event, &received[0].1.id), (HookEvent::MessageReceived, &received[1].1.id), "one event");
}

#[tokio::test]
async fn an_answer_is_changed_and_the_message_that_it_answers_is_not() {
    let fixture = message_fixture(|_| changed_to("better"));
    let sending = HookTrigger::for_outgoing_message(message("question"), "answer".to_owned());
    assert_eq!(fixture.hooks.filter_message(sending, &fixture.scope).await, Ok(changed_to("better")));
    assert_eq!(
        fixture.received_texts(),
        [text_seen_by("first", "answer", "question"), text_seen_by("second", "better", "question")]
    );
    assert_eq!(fixture.received.lock().unwrap()[0].1.event, HookEvent::MessageSending);
}

#[tokio::test]
async fn the_first_that_cancels_ends_the_question() {
    let fixture = message_fixture(|_| MessageAnswer::Cancel { reason: "not\nthis".to_owned() });
    assert_eq!(fixture.filter_received("x").await, MessageAnswer::Cancel { reason: "not".to_owned() });
    assert_eq!(fixture.received_texts(), [text_seen_by("first", "x", "x")]);
}

#[tokio::test(start_paused = true)]
async fn code_that_panics_hangs_or_answers_nonsense_changes_nothing() {
    let fixture = message_fixture(|content| match content {
        "panic" => panic!("as the test wants"),
        "blank" => changed_to(" \n"),
        _ => MessageAnswer::Content("x".repeat(1024 * 1024 + 1)),
    });
    for content in ["panic", "hang", "blank", "too long"] {
        assert_eq!(fixture.filter_received(content).await, MessageAnswer::Unchanged, "{content}");
        assert_eq!(fixture.received_texts().pop(), Some(text_seen_by("second", content, content)));
    }
    let how: Vec<_> =
        fixture.scope.ledger().rows().iter().map(|row| (row.kind, row.label.clone(), row.release())).collect();
    assert_eq!(how, vec![(ResourceKind::Hook, "on_message_received".to_owned(), Some(Release::Finished)); 4]);
}

#[tokio::test]
async fn a_cancel_ends_a_question_about_a_message_at_once() {
    let fixture = message_fixture(|_| MessageAnswer::Unchanged);
    let (hooks, scope) = (fixture.hooks.clone(), fixture.scope.clone());
    let asking = scope
        .clone()
        .spawn(async move { hooks.filter_message(HookTrigger::for_received_message(message("hang")), &scope).await });
    while fixture.received_texts().is_empty() {
        tokio::task::yield_now().await;
    }
    fixture.scope.cancel();
    assert_eq!(asking.await.unwrap(), Err(Cancelled));
    fixture.scope.close().await;
    assert_eq!(fixture.scope.ledger().rows()[0].release(), Some(Release::Cancelled));
    assert_eq!(fixture.received_texts().len(), 1, "nobody else was asked");
}

#[tokio::test]
async fn the_text_of_a_message_is_told_to_nobody_and_stored_nowhere() {
    let settings = HookSettings {
        on_message_received: "http://127.0.0.1:9/".into(),
        on_terminate: "http://127.0.0.1:9/".into(),
        secret: Some("hush".to_owned().into()),
        ..HookSettings::default()
    };
    let fixture = fixture_with(ScriptedHook::default(), settings);
    assert!(fixture.hooks.has_hooks_for(HookEvent::MessageReceived));
    let received = || HookTrigger::for_received_message(message("hello"));
    fixture.hooks.notify(received());
    fixture.hooks.notify_durably(received()).await.unwrap();
    fixture.hooks.notify_and_wait(received(), LONG_WAIT).await;
    assert_eq!(fixture.hooks.ask_hooks(received(), &fixture.scope).await, Ok(()));
    // Another event that carries a message by mistake.
    fixture
        .hooks
        .notify_durably(HookTrigger { message: received().message, ..trigger(HookEvent::Terminate, "s") })
        .await
        .unwrap();
    let stored = fixture.hooks.0.store.webhooks().next("http://127.0.0.1:9/".to_owned()).await.unwrap().unwrap();
    assert_eq!(stored.webhook.event, "on_terminate");
    assert!(!stored.webhook.body.contains("hello"), "{}", stored.webhook.body);
    assert!(fixture.hook.bodies.lock().unwrap().iter().all(|body| body.message.is_none()));
}
