//! Making: one caller makes a session, its stages are taken back in reverse, a failure is everybody's and the next try its own,
//! a stop ends it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use quell_engine::cell::Progress;
use quell_engine::dispatch::{Got, NotMade};
use quell_protocol::Verdict;
use quell_protocol::hook::HookEvent;
use quell_testkit::leaks;
use tokio::sync::Semaphore;

use super::{Around, LONG, Scene, request};
use crate::harness::{PATIENCE, alice, key, message};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_callers_at_once_make_one_session() {
    let gate = Arc::new(Semaphore::new(0));
    let around = Around { names: vec!["a"], gate: Some(Arc::clone(&gate)), ..Around::default() };
    let scene = Scene::with(around, |_| {}).await;
    let callers: Vec<_> = (0..1000)
        .map(|_| {
            let engine = scene.house.engine.clone();
            async move { engine.open_session(&alice(), request("u", "c")).await }
        })
        .collect();
    let (opened, ()) = tokio::join!(join_all(callers), async {
        let engine = scene.house.engine.clone();
        leaks::settled(PATIENCE, move || match engine.awaiting_sessions() {
            999 => Ok(()),
            waiting => Err(format!("{waiting} wait")),
        })
        .await;
        gate.add_permits(1);
    });
    let created = opened.iter().filter(|opened| matches!(opened, Ok((_, Got::Created)))).count();
    let known = opened.iter().filter(|opened| matches!(opened, Ok((_, Got::Known)))).count();
    assert_eq!((created, known), (1, 999));
    assert_eq!(scene.around.noted(), ["begin a"]);
    let creates = scene.around.heard_of("u:c:scripted").into_iter().filter(|event| *event == HookEvent::Create);
    assert_eq!(creates.count(), 1);
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_stage_releases_the_earlier_ones_in_reverse_and_everybody_gets_the_same_error() {
    let gate = Arc::new(Semaphore::new(0));
    let around = Around {
        names: vec!["a", "b", "c", "d"],
        fails: vec![("d", 1)].into(),
        gate: Some(Arc::clone(&gate)),
        ..Around::default()
    };
    let scene = Scene::with(around, |_| {}).await;
    let open = || {
        let engine = scene.house.engine.clone();
        async move { engine.open_session(&alice(), request("u", "c")).await }
    };
    let waiting = async {
        // All the others wait for the maker before its first stage may begin.
        let engine = scene.house.engine.clone();
        leaks::settled(PATIENCE, move || match engine.awaiting_sessions() {
            19 => Ok(()),
            waiting => Err(format!("{waiting} wait")),
        })
        .await;
        gate.add_permits(1000);
    };
    let (opened, ()) = tokio::join!(join_all((0..20).map(|_| open())), waiting);
    let errors: Vec<String> =
        opened.iter().filter_map(|opened| opened.as_ref().err().map(ToString::to_string)).collect();
    assert!(errors.iter().all(|error| error.contains("\"d\" failed: out of order")), "{errors:?}");
    assert_eq!(errors.len(), 20, "some waiter got something else: {opened:?}");
    scene.alive(0).await;
    assert_eq!(
        scene.around.noted()[..6],
        ["begin a", "begin b", "begin c", "undo c", "undo b", "undo a"].map(str::to_owned)
    );
    assert_eq!(scene.state("u:c:scripted").await, "none", "a session that was not made left a trace");
    // The next call tries again.
    assert_eq!(open().await.unwrap().1, Got::Created);
    assert_eq!(scene.around.alive(), 4);
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_veto_leaves_no_session_and_fails_a_run_with_its_reason() {
    let scene = Scene::open().await;
    *scene.around.veto.lock().unwrap() = Some("not on a Saturday".to_owned());
    let refused = scene.house.engine.open_session(&alice(), request("u", "c")).await.unwrap_err();
    assert_eq!(refused, NotMade::Refused("not on a Saturday".to_owned()));
    assert_eq!(scene.state("u:c:scripted").await, "none");
    let run = scene.house.ask("s", "hello").await;
    let Some(Verdict::Failed { code, message }) = &run.verdict else { panic!("{run:#?}") };
    assert_eq!(code, "session_refused");
    assert!(message.contains("not on a Saturday"), "{message}");
    assert_eq!((scene.around.alive(), scene.house.model.request_count()), (0, 0));
    *scene.around.veto.lock().unwrap() = None;
    assert_eq!(scene.house.ask("s", "hello").await.verdict.unwrap().word(), "completed");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_the_making_and_the_next_one_makes_it() {
    let gate = Arc::new(Semaphore::new(1));
    let around = Around { names: vec!["a", "b"], gate: Some(Arc::clone(&gate)), ..Around::default() };
    let scene = Scene::with(around, |_| {}).await;
    let run = scene.house.send(message("s", "hello")).await;
    let around = Arc::clone(&scene.around);
    leaks::settled(PATIENCE, move || {
        if around.noted() == ["begin a"] { Ok(()) } else { Err("the first stage has not begun".to_owned()) }
    })
    .await;
    let second = scene.house.send(message("s", "and then")).await;
    let stop = scene.house.stop(&run);
    stop.settled().await;
    scene.alive(0).await;
    assert_eq!(scene.around.noted(), ["begin a", "undo a"]);
    // The second one makes it.
    gate.add_permits(2);
    assert_eq!(scene.house.ended(&second).await.verdict.unwrap().word(), "completed");
    assert_eq!(scene.around.alive(), 2);
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_maker_that_is_stopped_takes_over() {
    let gate = Arc::new(Semaphore::new(0));
    let around = Around { names: vec!["a"], gate: Some(Arc::clone(&gate)), ..Around::default() };
    let scene = Scene::with(around, |_| {}).await;
    let run = scene.house.send(message("u:c:scripted", "hello")).await;
    let (around, engine) = (Arc::clone(&scene.around), scene.house.engine.clone());
    leaks::settled(PATIENCE, move || {
        if around.heard_of("u:c:scripted").contains(&HookEvent::Create) { Ok(()) } else { Err("not begun".to_owned()) }
    })
    .await;
    let waiter = async { engine.open_session(&alice(), request("u", "c")).await };
    let stopper = async {
        scene.house.stop(&run).settled().await;
        gate.add_permits(1);
    };
    let (opened, ()) = tokio::join!(waiter, stopper);
    assert!(opened.is_ok(), "{opened:?}");
    assert_eq!((scene.around.alive(), scene.around.most.load(Ordering::SeqCst)), (1, 1));
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_fails_keeps_no_other_from_being_done_and_is_tried_again() {
    let around = Around { names: vec!["a", "b", "c"], sticks: vec![("b", 1)].into(), ..Around::default() };
    let scene = Scene::with(around, |_| {}).await;
    scene.house.ask("s", "hello").await;
    scene.pass(LONG);
    scene.alive(1).await;
    assert_eq!(scene.around.noted()[3..], ["undo c", "undo a"].map(str::to_owned));
    // The session itself is over: its next message makes it anew, beside what still sticks.
    scene.house.ask("s", "again").await;
    assert_eq!(scene.around.alive(), 4);
    scene.house.engine.sweep_sessions();
    scene.alive(3).await;
    assert_eq!(scene.around.noted().iter().filter(|note| *note == "undo b").count(), 1);
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_failed_before_is_tried_a_last_time_at_the_shutdown() {
    let around = Around { names: vec!["a", "b"], sticks: vec![("b", 1)].into(), ..Around::default() };
    let scene = Scene::with(around, |_| {}).await;
    scene.house.ask("s", "hello").await;
    scene.pass(LONG);
    scene.alive(1).await;
    let engine = scene.house.engine.clone();
    leaks::settled(PATIENCE, move || match engine.unclean_sessions() {
        1 => Ok(()),
        unclean => Err(format!("{unclean} steps are left")),
    })
    .await;
    let around = Arc::clone(&scene.around);
    scene.house.close().await;
    assert_eq!(around.alive(), 0, "what sticks was left as it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_the_drop_of_a_stage_bars_nobody_from_its_session() {
    let around = Around { names: vec!["a", "b"], drops: vec![("b", 1)].into(), ..Around::default() };
    let scene = Scene::with(around, |_| {}).await;
    scene.house.ask("s", "hello").await;
    scene.pass(LONG);
    let run = scene.house.ask("s", "again").await;
    assert_eq!(run.verdict.unwrap().word(), "completed");
    let noted = scene.around.noted();
    assert!(noted.contains(&"undo a".to_owned()), "the panic has skipped a step: {noted:?}");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_deleted_while_it_is_made_is_cleaned_up() {
    let gate = Arc::new(Semaphore::new(0));
    let around = Around { names: vec!["a"], gate: Some(Arc::clone(&gate)), ..Around::default() };
    let scene = Scene::with(around, |_| {}).await;
    let run = scene.house.send(message("s", "hello")).await;
    let around = Arc::clone(&scene.around);
    leaks::settled(PATIENCE, move || {
        if around.heard_of("s").contains(&HookEvent::Create) { Ok(()) } else { Err("not begun".to_owned()) }
    })
    .await;
    let ask = crate::harness::ask(quell_kernel::Push::Gentle);
    assert!(scene.house.engine.delete_session(&alice(), &key("s"), &ask).await.unwrap());
    gate.add_permits(10);
    scene.alive(0).await;
    let gone = scene.house.engine.live(&run).is_none_or(|cell| cell.progress() == Progress::Ended);
    assert!(gone);
    assert_eq!(scene.state("s").await, "none");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_a_session_that_is_deleted_meanwhile_gets_a_new_one() {
    let gate = Arc::new(Semaphore::new(0));
    let around = Around { names: vec!["a"], gate: Some(Arc::clone(&gate)), ..Around::default() };
    let scene = Scene::with(around, |_| {}).await;
    let mut asked = request("u", "c");
    asked.instruction = Some("Speak like a pirate.".to_owned());
    let open = |asked| {
        let engine = scene.house.engine.clone();
        async move { engine.open_session(&alice(), asked).await }
    };
    let delete = async {
        let (around, engine) = (Arc::clone(&scene.around), scene.house.engine.clone());
        leaks::settled(PATIENCE, move || match around.heard_of("u:c:scripted").len() {
            1 => Ok(()),
            heard => Err(format!("{heard} events")),
        })
        .await;
        let ask = crate::harness::ask(quell_kernel::Push::Gentle);
        let opener = async {
            // The deletion waits for who makes the session: let that go on.
            let waiting = engine.clone();
            leaks::settled(PATIENCE, move || match waiting.awaiting_sessions() {
                1 => Ok(()),
                waiting => Err(format!("{waiting} wait")),
            })
            .await;
            gate.add_permits(10);
        };
        let (alice, key) = (alice(), key("u:c:scripted"));
        tokio::join!(engine.delete_session(&alice, &key, &ask), opener).0
    };
    let (opened, deleted) = tokio::join!(open(asked), delete);
    assert_eq!(opened.unwrap().1, Got::Created);
    assert!(deleted.unwrap(), "what was stored of the one that was being made is left");
    assert_eq!(scene.around.noted(), ["begin a", "undo a", "begin a"]);
    assert_eq!((scene.state("u:c:scripted").await.as_str(), scene.around.alive()), ("ready", 1));
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_waits_until_what_was_known_of_the_deleted_one_is_gone() {
    let undo_gate = Arc::new(Semaphore::new(0));
    let around = Around { names: vec!["a"], undo_gate: Some(Arc::clone(&undo_gate)), ..Around::default() };
    let scene = Scene::with(around, |_| {}).await;
    let mut asked = request("u", "c");
    asked.instruction = Some("Speak like a pirate.".to_owned());
    scene.house.engine.open_session(&alice(), asked).await.unwrap();
    let engine = &scene.house.engine;
    let ask = crate::harness::ask(quell_kernel::Push::Gentle);
    // Two deletions at once, and somebody who asks meanwhile.
    let delete = || async { engine.delete_session(&alice(), &key("u:c:scripted"), &ask).await.unwrap() };
    let open = async {
        let engine = engine.clone();
        leaks::settled(PATIENCE, move || match engine.live_sessions() {
            0 => Ok(()),
            lives => Err(format!("{lives} live")),
        })
        .await;
        let alice = alice();
        tokio::join!(scene.house.engine.open_session(&alice, request("u", "c")), async {
            let engine = scene.house.engine.clone();
            leaks::settled(PATIENCE, move || match engine.awaiting_sessions() {
                3 => Ok(()),
                waiting => Err(format!("{waiting} wait")),
            })
            .await;
            undo_gate.add_permits(10);
        })
        .0
    };
    let (one, other, opened) = tokio::join!(delete(), delete(), open);
    assert!(one != other, "one of them has deleted it");
    assert_eq!(opened.unwrap().1, Got::Created);
    let shown = engine.session_view(&key("u:c:scripted")).await.unwrap().unwrap();
    assert!(!shown.config.unwrap().instruction.value.contains("pirate"), "it has inherited");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_being_made_at_the_shutdown_is_given_back_before_its_end() {
    let (gate, undo_gate) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(0)));
    let around = Around {
        names: vec!["a", "b"],
        gate: Some(Arc::clone(&gate)),
        undo_gate: Some(Arc::clone(&undo_gate)),
        ..Around::default()
    };
    let scene = Scene::with(around, |_| {}).await;
    let (engine, around) = (scene.house.engine.clone(), Arc::clone(&scene.around));
    let opening = async move { engine.open_session(&alice(), request("u", "c")).await };
    let closing = async {
        scene.alive(1).await;
        let down = scene.house.engine.shut_down();
        let noting = Arc::clone(&around);
        let undone = async {
            // The clean-up has begun, and takes its time: longer than other tasks of the engine have.
            tokio::time::sleep(std::time::Duration::from_millis(800)).await;
            assert_eq!(noting.noted(), ["begin a"]);
            undo_gate.add_permits(1);
        };
        tokio::join!(down, undone).0
    };
    let (opened, left) = tokio::join!(opening, closing);
    assert_eq!(opened.unwrap_err(), NotMade::Closing);
    assert!(left.is_empty(), "{left:?}");
    assert_eq!((around.noted(), around.alive()), (vec!["begin a".to_owned(), "undo a".to_owned()], 0));
}
