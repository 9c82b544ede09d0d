//! Hook commands: input, answers, timeouts, misbehaviour.

use quell_testkit::commands;

use super::messages::{ask_message_hook, channel_message};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_gets_the_event_on_its_input_and_in_its_environment_and_runs_in_the_data_directory() {
    let test = start_engine(|hooks| {
        let note = "printf '%s\\n' \"$QUELL_HOOK\" \"$QUELL_SESSION\" \"$QUELL_RUN_ID\" >> env.txt";
        hooks.on_create = format!("cat > body.json; {note}").as_str().into();
        (hooks.on_message_received, hooks.on_message_sending) = (note.into(), note.into());
    })
    .await;
    assert_eq!(ask_create_hook(&test, "s/1 ü").await, Ok(()));
    ask_message_hook(&test, "question").await;
    let sending = HookTrigger::for_outgoing_message(channel_message("question"), "answer".to_owned());
    assert_eq!(test.engine.hooks().filter_message(sending, &new_scope()).await, Ok(MessageAnswer::Unchanged));
    let body: HookBody =
        serde_json::from_str(&std::fs::read_to_string(test.test_dir.path().join("body.json")).unwrap()).unwrap();
    assert_eq!((body.event, body.session.as_ref()), (HookEvent::Create, Some(&session_facts("s/1 ü"))));
    assert!(body.run.is_none() && !body.id.is_empty() && body.at.ends_with('Z'), "{body:?}");
    let env = wait_lines(&test.test_dir.path().join("env.txt"), 9).await;
    let events = [("on_create", "s/1 ü"), ("on_message_received", ""), ("on_message_sending", "")];
    for (env, (event, session)) in env.chunks(3).zip(events) {
        assert_eq!(env[..2], [event, session]);
        assert!(env[2].starts_with("hook-"), "the hook must have an id of its own: {env:?}");
    }
    test.close().await;
}

#[rstest]
#[case::its_first_line("echo; echo 'no more than ten'; echo more; echo x >&2; exit 1", "no more than ten")]
#[case::else_what_it_complains_of("echo 'no disk' >&2; exit 7", "no disk")]
#[case::else_its_exit_code("exit 3", "it ended with exit code 3")]
#[case::else_its_signal("kill -9 $$", "it was ended by signal 9")]
#[case::no_such_program("exec /quell-no-such-program 2>/dev/null", "it ended with exit code 127")]
#[case::its_time("sleep 600", "it took longer than 100 ms and was ended")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_does_not_end_well_refuses_the_session_with_its_reason(
    #[case] command: &str,
    #[case] reason: &str,
) {
    let test = start_engine(|hooks| {
        hooks.on_create = command.into();
        hooks.timeout_ms = if command == "sleep 600" { 100 } else { hooks.timeout_ms };
    })
    .await;
    assert_eq!(ask_create_hook(&test, "s").await.unwrap_err().reason, reason);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_of_several_that_refuses_ends_the_question() {
    let test = start_engine(|hooks| {
        hooks.on_create.0 =
            ["echo 1 >> asked", "echo 2 >> asked; echo not you; exit 1", "echo 3 >> asked"].map(str::to_owned).to_vec();
    })
    .await;
    assert_eq!(ask_create_hook(&test, "s").await.unwrap_err().reason, "not you");
    assert_eq!(wait_lines(&test.test_dir.path().join("asked"), 2).await, ["1", "2"]);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_that_is_not_there_refuses_the_session() {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        config.hooks.on_create = "true".into();
        config.environment = vec![("PATH".into(), "/nonexistent".into())];
    })
    .await;
    let veto = ask_create_hook(&test, "s").await.unwrap_err();
    assert!(veto.reason.contains("cannot execute sh"), "{veto}");
    test.close().await;
}

/// Commands that never end by themselves.
#[rstest]
#[case::deaf(commands::ignores_signals)]
#[case::forked_and_deaf(commands::signal_ignoring_setsid_child)]
#[case::forked_twice(commands::double_fork)]
#[case::born_again(commands::respawns_on_term)]
#[case::stopped(commands::stops_itself)]
#[case::printing_without_end(commands::output_flood)]
#[case::without_output(commands::closes_its_output)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_never_ends_refuses_when_its_time_is_up_and_leaves_nothing(
    #[case] command: fn(&ProcessMarker) -> String,
) {
    ask_endless_hook(command).await;
}

/// Returns the time until the refusal.
async fn ask_endless_hook(command: fn(&ProcessMarker) -> String) -> Duration {
    let marker = ProcessMarker::new();
    let test = start_engine(|hooks| {
        hooks.on_create = command(&marker).as_str().into();
        hooks.timeout_ms = 300;
    })
    .await;
    let begun = Instant::now();
    let veto = ask_create_hook(&test, "s").await.unwrap_err();
    let took = begun.elapsed();
    assert!(!veto.reason.is_empty() && veto.reason.chars().count() <= 300, "{veto}");
    assert_eq!(marker.marked_processes(), []);
    test.close().await;
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_a_hook_leaves_running_are_ended_with_it() {
    let marker = ProcessMarker::new();
    let test = start_engine(|hooks| hooks.on_create = commands::detached_server(&marker).as_str().into()).await;
    assert_eq!(ask_create_hook(&test, "s").await, Ok(()));
    assert_eq!(marker.marked_processes(), []);
    test.close().await;
}

/// A body larger than the buffer of a pipe.
#[rstest]
#[case::read_whole("test \"$(wc -c)\" -gt 1000000")]
#[case::read_slowly("sleep 0.2; test \"$(wc -c)\" -gt 1000000")]
#[case::not_read("exit 0")]
#[case::closed("exec <&-; sleep 0.1")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_bigger_than_a_pipe_is_given_to_who_reads_it(#[case] command: &str) {
    let test = start_engine(|hooks| hooks.on_create = command.into()).await;
    let mut facts = session_facts("s");
    facts.user_id = Some("x".repeat(1_000_000));
    let scope = new_scope();
    let asked = test.engine.hooks().ask_hooks(HookTrigger::for_session(HookEvent::Create, facts), &scope);
    assert_eq!(tokio::time::timeout(WAIT_TIMEOUT, asked).await.unwrap(), Ok(()));
    scope.close().await;
    test.close().await;
}

/// Asks the hooks of an event as the engine does; true if the scope was cancelled meanwhile.
async fn is_cancelled(hooks: &Hooks, event: HookEvent, scope: &Scope) -> bool {
    if event == HookEvent::Create {
        return hooks.ask_hooks(session_trigger(event, "s"), scope).await == Err(Interrupted::Cancelled);
    }
    let message = channel_message("x");
    let trigger = match event {
        HookEvent::MessageReceived => HookTrigger::for_received_message(message),
        _ => HookTrigger::for_outgoing_message(message, "answer".to_owned()),
    };
    hooks.filter_message(trigger, scope).await == Err(Cancelled)
}

fn set_asked_hooks(hooks: &mut HookSettings, command: &str) {
    (hooks.on_create, hooks.on_message_received) = (command.into(), command.into());
    (hooks.on_message_sending, hooks.timeout_ms) = (command.into(), 60_000);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_kills_a_hook_at_once_and_its_scope_knows_what_it_held(
    #[values(HookEvent::Create, HookEvent::MessageReceived, HookEvent::MessageSending)] event: HookEvent,
) {
    let marker = ProcessMarker::new();
    let test = start_engine_with_long_grace(|hooks| set_asked_hooks(hooks, &signal_ignoring_command(&marker))).await;
    let (hooks, scope) = (test.engine.hooks().clone(), new_scope());
    let own = scope.clone();
    let asking = tokio::spawn(async move { is_cancelled(&hooks, event, &own).await });
    wait_signals_ignored(&test, &marker).await;
    let begun = Instant::now();
    scope.cancel();
    assert!(tokio::time::timeout(SOON_LIMIT, asking).await.unwrap().unwrap());
    tokio::time::timeout(SOON_LIMIT, scope.close()).await.unwrap();
    // With the grace applied, a command that ignores SIGTERM would live for a minute.
    assert!(begun.elapsed() < SOON_LIMIT, "{:?}", begun.elapsed());
    assert_eq!(marker.marked_processes(), []);
    let held: Vec<_> = scope.ledger().rows().iter().map(|row| (row.kind, row.release().unwrap())).collect();
    assert_eq!(held, [(ResourceKind::Hook, Release::Cancelled), (ResourceKind::Process, Release::Kill)]);
    test.close().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_a_hook_leaves_no_process(
    #[values(HookEvent::Create, HookEvent::MessageReceived)] event: HookEvent,
) {
    let marker = ProcessMarker::new();
    let test = start_engine(|hooks| set_asked_hooks(hooks, &commands::ignores_signals(&marker))).await;
    let scope = new_scope();
    tokio::select! {
        answer = is_cancelled(test.engine.hooks(), event, &scope) => panic!("{answer:?}"),
        () = marker.wait_for_count(1) => {}
    }
    tokio::time::timeout(SOON_LIMIT, scope.close()).await.unwrap();
    assert_eq!(marker.marked_processes(), []);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_a_session_are_told_in_order_and_those_of_others_beside_them() {
    let marker = ProcessMarker::new();
    let file = tempfile::tempdir().unwrap();
    let out = file.path().join("told");
    let (hangs, keep) = (commands::ignores_signals(&marker), append_stdin_command(&out));
    let test = start_engine(|hooks| {
        let command = format!("if [ \"$QUELL_SESSION\" = stuck ]; then {hangs}; else {keep}; fi");
        hooks.on_terminate = command.as_str().into();
        hooks.timeout_ms = 60_000;
    })
    .await;
    let hooks = test.engine.hooks();
    hooks.notify(session_trigger(HookEvent::Terminate, "stuck"));
    marker.wait_for_count(1).await;
    for number in 0..20 {
        let mut facts = session_facts("busy");
        facts.chat_id = Some(number.to_string());
        hooks.notify(HookTrigger::for_session(HookEvent::Terminate, facts));
    }
    let bodies = wait_bodies(&out, 20).await;
    let numbers: Vec<_> = bodies.iter().map(|body| body["session"]["chatId"].as_str().unwrap().to_owned()).collect();
    assert_eq!(numbers, (0..20).map(|number: u32| number.to_string()).collect::<Vec<_>>());
    test.close().await;
    assert_eq!(marker.marked_processes(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_up_waits_for_its_hook_but_not_longer_than_it_wants_to() {
    let marker = ProcessMarker::new();
    let (hangs, dir) = (commands::ignores_signals(&marker), tempfile::tempdir().unwrap());
    let out = dir.path().join("expired");
    let test = start_engine(|hooks| {
        hooks.on_expire = append_stdin_command(&out).as_str().into();
        hooks.on_terminate = hangs.as_str().into();
        hooks.timeout_ms = 60_000;
    })
    .await;
    let hooks = test.engine.hooks();
    hooks.notify_and_wait(session_trigger(HookEvent::Expire, "s"), WAIT_TIMEOUT).await;
    assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 1, "the hook was not awaited");
    let begun = Instant::now();
    hooks.notify_and_wait(session_trigger(HookEvent::Terminate, "s"), Duration::from_millis(200)).await;
    assert!(begun.elapsed() < SOON_LIMIT, "{:?}", begun.elapsed());
    // It goes on.
    marker.wait_for_count(1).await;
    test.close().await;
}

mod timing {
    use super::*;

    /// The target is 800 ms: 300 ms for the hook, and 500 ms from SIGTERM to SIGKILL.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_deaf_hook_ends() {
        report_time("a deaf hook", ask_endless_hook(commands::ignores_signals).await);
    }
}
