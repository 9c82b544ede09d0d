//! Hooks of embedding programs that are asked about messages: the chain, its end, and those that fail to answer.

use super::*;

/// Answers a text as the test says, and keeps what it was asked about.
struct Editor {
    name: &'static str,
    answers: fn(&str) -> MessageAnswer,
    /// The text at which it never answers.
    hangs: &'static str,
    saw: Arc<Mutex<Vec<(&'static str, HookBody)>>>,
}

impl LifecycleHook for Editor {
    fn name(&self) -> &str {
        self.name
    }

    fn on_message_received<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, MessageAnswer> {
        async {
            self.saw.lock().unwrap().push((self.name, body.clone()));
            let content = &body.message.as_ref().unwrap().content;
            if content == self.hangs {
                pending::<()>().await;
            }
            (self.answers)(content)
        }
        .boxed()
    }

    fn on_message_sending<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, MessageAnswer> {
        self.on_message_received(body)
    }
}

/// Hooks of two editors: the first as given, the second only looks.
struct Desk {
    hooks: Hooks,
    scope: Scope,
    saw: Arc<Mutex<Vec<(&'static str, HookBody)>>>,
    _dir: TempDir,
}

fn desk(answers: fn(&str) -> MessageAnswer) -> Desk {
    let (dir, clock, saw) = (tempfile::tempdir().unwrap(), Clock::start(), Arc::default());
    let editor = |name, answers, hangs| {
        Arc::new(Editor { name, answers, hangs, saw: Arc::clone(&saw) }) as Arc<dyn LifecycleHook>
    };
    let hooks = Hooks::new(HookGround {
        settings: HookSettings { timeout_ms: 1000, ..HookSettings::default() },
        lifecycle: vec![editor("first", answers, "hang"), editor("second", |_| MessageAnswer::Unchanged, "")],
        wardens: Wardens::new(WardenExe::ThisProcess, StopTimes::default()).unwrap(),
        environment: Vec::new(),
        cwd: dir.path().to_owned(),
        store: Store::open(dir.path(), "quell.db").unwrap(),
        clock,
    })
    .unwrap();
    Desk { hooks, scope: Scope::new(clock, Probe::default()), saw, _dir: dir }
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

impl Desk {
    async fn received(&self, content: &str) -> MessageAnswer {
        self.hooks.ask_message(Happening::of_received(message(content)), &self.scope).await.unwrap()
    }

    /// Who was asked about which text, and what stood in the message then.
    fn seen(&self) -> Vec<(&'static str, String, String)> {
        let saw = self.saw.lock().unwrap();
        let facts = saw.iter().map(|(name, body)| (*name, body.message.clone().unwrap()));
        facts.map(|(name, facts)| (name, facts.content, facts.message.content)).collect()
    }
}

fn changed(content: &str) -> MessageAnswer {
    MessageAnswer::Content(content.to_owned())
}

fn seen(name: &'static str, content: &str, message: &str) -> (&'static str, String, String) {
    (name, content.to_owned(), message.to_owned())
}

#[tokio::test]
async fn the_next_hook_sees_what_the_one_before_made_of_a_message() {
    let desk = desk(|content| changed(&content.replace("secret", "...")));
    assert_eq!(desk.received("a secret").await, changed("a ..."));
    assert_eq!(desk.seen(), [seen("first", "a secret", "a secret"), seen("second", "a ...", "a ...")]);
    let saw = desk.saw.lock().unwrap();
    assert_eq!((saw[0].1.event, &saw[0].1.id), (HookEvent::MessageReceived, &saw[1].1.id), "one event");
}

#[tokio::test]
async fn an_answer_is_changed_and_the_message_that_it_answers_is_not() {
    let desk = desk(|_| changed("better"));
    let sending = Happening::of_sending(message("question"), "answer".to_owned());
    assert_eq!(desk.hooks.ask_message(sending, &desk.scope).await, Ok(changed("better")));
    assert_eq!(desk.seen(), [seen("first", "answer", "question"), seen("second", "better", "question")]);
    assert_eq!(desk.saw.lock().unwrap()[0].1.event, HookEvent::MessageSending);
}

#[tokio::test]
async fn the_first_that_cancels_ends_the_question() {
    let desk = desk(|_| MessageAnswer::Cancel { reason: "not\nthis".to_owned() });
    assert_eq!(desk.received("x").await, MessageAnswer::Cancel { reason: "not".to_owned() });
    assert_eq!(desk.seen(), [seen("first", "x", "x")]);
}

#[tokio::test(start_paused = true)]
async fn code_that_panics_hangs_or_answers_nonsense_changes_nothing() {
    let desk = desk(|content| match content {
        "panic" => panic!("as the test wants"),
        "blank" => changed(" \n"),
        _ => MessageAnswer::Content("x".repeat(1024 * 1024 + 1)),
    });
    for content in ["panic", "hang", "blank", "too long"] {
        assert_eq!(desk.received(content).await, MessageAnswer::Unchanged, "{content}");
        assert_eq!(desk.seen().pop(), Some(seen("second", content, content)));
    }
    let how: Vec<_> = desk.scope.ledger().rows().iter().map(|row| (row.kind, row.label.clone(), row.how)).collect();
    assert_eq!(how, vec![(ResourceKind::Hook, "on_message_received".to_owned(), "finished"); 4]);
}

#[tokio::test]
async fn a_cancel_ends_a_question_about_a_message_at_once() {
    let desk = desk(|_| MessageAnswer::Unchanged);
    let (hooks, scope) = (desk.hooks.clone(), desk.scope.clone());
    let asking =
        scope.clone().spawn(async move { hooks.ask_message(Happening::of_received(message("hang")), &scope).await });
    while desk.seen().is_empty() {
        tokio::task::yield_now().await;
    }
    desk.scope.cancel();
    assert_eq!(asking.await.unwrap(), Err(Cancelled));
    desk.scope.close().await;
    assert_eq!(desk.scope.ledger().rows()[0].how, "cancelled");
    assert_eq!(desk.seen().len(), 1, "nobody else was asked");
}

#[tokio::test]
async fn the_text_of_a_message_is_told_to_nobody_and_stored_nowhere() {
    let settings = HookSettings {
        on_message_received: "http://127.0.0.1:9/".into(),
        on_terminate: "http://127.0.0.1:9/".into(),
        secret: Some("hush".to_owned().into()),
        ..HookSettings::default()
    };
    let bench = bench_with(Scripted::default(), settings);
    assert!(bench.hooks.has(HookEvent::MessageReceived));
    let told = || Happening::of_received(message("hello"));
    bench.hooks.tell(told());
    bench.hooks.record(told()).await.unwrap();
    bench.hooks.tell_and_wait(told(), LONG).await;
    assert_eq!(bench.hooks.ask(told(), &bench.scope).await, Ok(Ok(())));
    // Another event that is handed a message by mistake.
    bench.hooks.record(Happening { message: told().message, ..happening(HookEvent::Terminate, "s") }).await.unwrap();
    let stored = bench.hooks.0.store.next_delivery("http://127.0.0.1:9/".to_owned()).await.unwrap().unwrap();
    assert_eq!(stored.delivery.event, "on_terminate");
    assert!(!stored.delivery.body.contains("hello"), "{}", stored.delivery.body);
    assert!(bench.hook.heard.lock().unwrap().iter().all(|body| body.message.is_none()));
}
