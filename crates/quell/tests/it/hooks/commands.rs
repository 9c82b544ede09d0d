//! Hooks that are commands: what they get, how they answer, and those that misbehave.

use std::time::{Duration, Instant};

use quell_engine::hooks::Happening;
use quell_engine::scope::Cancelled;
use quell_protocol::ResourceKind;
use quell_protocol::hook::{HookBody, HookEvent};
use quell_testkit::commands::{self, Marker};
use quell_testkit::leaks;
use rstest::rstest;

use super::{
    SOON, bodies, deaf_with_child, house, is_deaf, keeps_in, lines, may_be_made, patient_house, scope, session,
};
use crate::harness::PATIENCE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_gets_the_event_on_its_input_and_in_its_environment_and_runs_in_the_data_directory() {
    let house = house(|hooks| {
        hooks.on_create =
            "cat > body.json; printf '%s\\n' \"$QUELL_HOOK\" \"$QUELL_SESSION\" \"$QUELL_RUN_ID\" > env.txt".into();
    })
    .await;
    assert_eq!(may_be_made(&house, "s/1 ü").await, Ok(()));
    let body: HookBody =
        serde_json::from_str(&std::fs::read_to_string(house.dir.path().join("body.json")).unwrap()).unwrap();
    assert_eq!((body.event, body.session.as_ref()), (HookEvent::Create, Some(&session("s/1 ü"))));
    assert!(body.run.is_none() && !body.id.is_empty() && body.at.ends_with('Z'), "{body:?}");
    let env = lines(&house.dir.path().join("env.txt"), 3).await;
    assert_eq!(env[..2], ["on_create", "s/1 ü"]);
    assert!(env[2].starts_with("hook-"), "no run has caused it: {env:?}");
    house.close().await;
}

#[rstest]
#[case::its_first_line("echo; echo 'no more than ten'; echo more; echo x >&2; exit 1", "no more than ten")]
#[case::else_what_it_complains_of("echo 'no disk' >&2; exit 7", "no disk")]
#[case::else_its_exit_code("exit 3", "it ended with exit code 3")]
#[case::else_its_signal("kill -9 $$", "it was ended by signal 9")]
#[case::no_such_program("exec quell-no-such-program 2>/dev/null", "it ended with exit code 127")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_does_not_end_well_refuses_the_session_with_its_reason(
    #[case] command: &str,
    #[case] reason: &str,
) {
    let house = house(|hooks| hooks.on_create = command.into()).await;
    assert_eq!(may_be_made(&house, "s").await.unwrap_err().reason, reason);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_of_several_that_refuses_ends_the_question() {
    let house = house(|hooks| {
        hooks.on_create.0 =
            ["echo 1 >> asked", "echo 2 >> asked; echo not you; exit 1", "echo 3 >> asked"].map(str::to_owned).to_vec();
    })
    .await;
    assert_eq!(may_be_made(&house, "s").await.unwrap_err().reason, "not you");
    assert_eq!(lines(&house.dir.path().join("asked"), 2).await, ["1", "2"]);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_that_is_not_there_refuses_the_session() {
    let claim = crate::harness::Claim::shared().await;
    let house = crate::harness::House::with(claim, |config| {
        config.hooks.on_create = "true".into();
        config.environment = vec![("PATH".into(), "/nonexistent".into())];
    })
    .await;
    let veto = may_be_made(&house, "s").await.unwrap_err();
    assert!(veto.reason.contains("cannot execute sh"), "{veto}");
    house.close().await;
}

/// Commands that do not end by themselves, in one way or another.
#[rstest]
#[case::deaf(commands::ignores_signals)]
#[case::forked_and_deaf(commands::deaf_setsid_child)]
#[case::forked_twice(commands::double_fork)]
#[case::born_again(commands::respawns_on_term)]
#[case::stopped(commands::stops_itself)]
#[case::printing_without_end(commands::output_flood)]
#[case::without_output(commands::closes_its_output)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_never_ends_refuses_when_its_time_is_up_and_leaves_nothing(
    #[case] command: fn(&Marker) -> String,
) {
    let mark = Marker::new();
    let house = house(|hooks| {
        hooks.on_create = command(&mark).as_str().into();
        hooks.timeout_ms = 300;
    })
    .await;
    let begun = Instant::now();
    let veto = may_be_made(&house, "s").await.unwrap_err();
    // 300 ms, and 500 ms from SIGTERM to SIGKILL; the rest is a busy machine's.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(!veto.reason.is_empty() && veto.reason.chars().count() <= 300, "{veto}");
    assert_eq!(mark.survivors().len(), 0, "{:#?}", mark.survivors());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_command_whose_time_is_up_is_said_to_have_taken_too_long() {
    let house = house(|hooks| {
        hooks.on_create = "sleep 600".into();
        hooks.timeout_ms = 100;
    })
    .await;
    assert_eq!(may_be_made(&house, "s").await.unwrap_err().reason, "it took longer than 100 ms and was ended");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_command_leaves_running_is_ended_with_it() {
    let mark = Marker::new();
    let house = house(|hooks| hooks.on_create = commands::detached_server(&mark).as_str().into()).await;
    assert_eq!(may_be_made(&house, "s").await, Ok(()));
    assert_eq!(mark.survivors().len(), 0, "{:#?}", mark.survivors());
    house.close().await;
}

/// A body that no pipe takes at once.
#[rstest]
#[case::read_whole("test \"$(wc -c)\" -gt 1000000")]
#[case::read_slowly("sleep 0.2; test \"$(wc -c)\" -gt 1000000")]
#[case::not_read("exit 0")]
#[case::closed("exec <&-; sleep 0.1")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_bigger_than_a_pipe_is_given_to_who_reads_it(#[case] command: &str) {
    let house = house(|hooks| hooks.on_create = command.into()).await;
    let mut facts = session("s");
    facts.user_id = Some("x".repeat(1_000_000));
    let scope = scope();
    let asked = house.engine.hooks().ask(Happening::of_session(HookEvent::Create, facts), &scope);
    assert_eq!(tokio::time::timeout(PATIENCE, asked).await.unwrap(), Ok(Ok(())));
    scope.close().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_kills_a_hook_at_once_and_its_scope_knows_what_it_held() {
    let mark = Marker::new();
    let house = patient_house(|hooks| hooks.on_create = deaf_with_child(&mark).as_str().into()).await;
    let scope = scope();
    let (hooks, own) = (house.engine.hooks().clone(), scope.clone());
    let asking =
        tokio::spawn(async move { hooks.ask(Happening::of_session(HookEvent::Create, session("s")), &own).await });
    is_deaf(&house, &mark).await;
    let begun = Instant::now();
    scope.cancel();
    assert_eq!(tokio::time::timeout(SOON, asking).await.unwrap().unwrap(), Err(Cancelled));
    tokio::time::timeout(SOON, scope.close()).await.unwrap();
    // A deaf command would have its minute from SIGTERM on.
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(mark.survivors().len(), 0, "{:#?}", mark.survivors());
    let rows = scope.ledger().rows();
    let held: Vec<_> = rows.iter().map(|row| (row.kind, row.how)).collect();
    assert_eq!(held, [(ResourceKind::Hook, "cancelled"), (ResourceKind::Process, "kill")]);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_and_leaves_leaves_no_process() {
    let mark = Marker::new();
    let house = house(|hooks| hooks.on_create = commands::ignores_signals(&mark).as_str().into()).await;
    let scope = scope();
    {
        let asking = house.engine.hooks().ask(Happening::of_session(HookEvent::Create, session("s")), &scope);
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
async fn events_of_a_session_are_told_in_order_and_those_of_others_beside_them() {
    let mark = Marker::new();
    let file = tempfile::tempdir().unwrap();
    let out = file.path().join("told");
    let hangs = commands::ignores_signals(&mark);
    let keep = keeps_in(&out);
    let house = house(|hooks| {
        let command = format!("if [ \"$QUELL_SESSION\" = stuck ]; then {hangs}; else {keep}; fi");
        hooks.on_terminate = command.as_str().into();
        hooks.timeout_ms = 60_000;
    })
    .await;
    let hooks = house.engine.hooks();
    hooks.tell(Happening::of_session(HookEvent::Terminate, session("stuck")));
    mark.at_least(1).await;
    for number in 0..20 {
        let mut facts = session("busy");
        facts.chat_id = Some(number.to_string());
        hooks.tell(Happening::of_session(HookEvent::Terminate, facts));
    }
    let told = bodies(&out, 20).await;
    let numbers: Vec<_> = told.iter().map(|body| body["session"]["chatId"].as_str().unwrap().to_owned()).collect();
    assert_eq!(numbers, (0..20).map(|number: u32| number.to_string()).collect::<Vec<_>>());
    house.close().await;
    assert_eq!(mark.survivors().len(), 0, "{:#?}", mark.survivors());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_up_waits_for_its_hook_but_not_longer_than_it_wants_to() {
    let mark = Marker::new();
    let (hangs, dir) = (commands::ignores_signals(&mark), tempfile::tempdir().unwrap());
    let out = dir.path().join("expired");
    let house = house(|hooks| {
        hooks.on_expire = keeps_in(&out).as_str().into();
        hooks.on_terminate = hangs.as_str().into();
        hooks.timeout_ms = 60_000;
    })
    .await;
    let hooks = house.engine.hooks();
    hooks.tell_and_wait(Happening::of_session(HookEvent::Expire, session("s")), PATIENCE).await;
    assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 1, "it was waited for");
    let begun = Instant::now();
    hooks.tell_and_wait(Happening::of_session(HookEvent::Terminate, session("s")), Duration::from_millis(200)).await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    leaks::settled(
        PATIENCE,
        move || {
            if mark.survivors().is_empty() { Err("it does not go on".to_owned()) } else { Ok(()) }
        },
    )
    .await;
    house.close().await;
}
