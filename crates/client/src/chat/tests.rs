//! The core under the hands of people: what keys and answers may do in every state, and what they may never do.

mod approvals;
mod elsewhere;
mod ends;
mod properties;

use crossterm::event::KeyCode;
use quell_protocol::EventKind;
use serde_json::json;

use super::effects::{Answer, Effect, Failure, FailureKind, Input, Page, Question, RunSeen};
use super::scene::{Scene, read, run, sent_run};
use crate::fake::daemon::view;
use crate::fake::receipts;
use crate::link::Sent;

fn stops(effects: &[Effect]) -> Vec<(bool, bool)> {
    let stop = |effect: &Effect| match effect {
        Effect::StopSession { force, .. } => Some((true, *force)),
        Effect::StopRun { force, .. } => Some((false, *force)),
        _ => None,
    };
    effects.iter().filter_map(stop).collect()
}

fn away() -> Failure {
    Failure { text: "connection refused".into(), kind: FailureKind::Away }
}

fn refused() -> Failure {
    Failure { text: "no".into(), kind: FailureKind::Refused }
}

fn not_found() -> Failure {
    Failure { text: "no such run".into(), kind: FailureKind::NotFound }
}

fn ended(scene: &mut Scene, id: &quell_protocol::RunId) -> Vec<Effect> {
    let (verdict, receipt) = (receipts::by_user(), Box::new(receipts::stopped()));
    scene.event(id, EventKind::Ended { verdict, receipt, steps: 1, text: None })
}

#[test]
fn esc_does_nothing_while_nothing_runs() {
    let mut scene = Scene::new();
    scene.type_in("a thought");
    assert_eq!(scene.esc(), []);
    assert_eq!(scene.chat.composer.text(), "a thought");
}

#[test]
fn esc_stops_and_the_second_forces() {
    let mut scene = Scene::new();
    let id = scene.running("work");
    assert_eq!(stops(&scene.esc()), [(true, false)]);
    let force = Effect::StopRun { run: id.clone(), force: true };
    assert_eq!(scene.esc(), [force], "the run that was meant, and not whatever else began in the session meanwhile");
    scene.stop_answered(read(json!({"aborted": true, "runIds": [id.as_str()]})));
    assert!(scene.chat.stop.is_some());
    ended(&mut scene, &id);
    assert!(scene.chat.stop.is_some(), "the answer to the force is still out");
    scene.input(Input::Answer(Answer::RunStopped { run: id, result: Err(not_found()) }));
    assert!(scene.chat.stop.is_none() && !scene.chat.is_active());
    assert_eq!(scene.esc(), []);
}

#[test]
fn a_message_on_its_way_is_stopped_by_its_own_id() {
    let mut scene = Scene::new();
    let id = sent_run(&scene.say("work")).unwrap();
    let effects = scene.esc();
    assert!(effects.contains(&Effect::StopRun { run: id, force: false }), "{effects:?}");
    assert_eq!(stops(&effects), [(false, false), (true, false)]);
}

#[test]
fn a_run_that_began_after_the_stop_is_stopped_gently_first() {
    let mut scene = Scene::new();
    scene.running("one");
    scene.esc();
    scene.sent("two", "queued");
    assert_eq!(stops(&scene.esc()), [(true, false)]);
    assert_eq!(stops(&scene.esc()), [(false, true), (false, true)]);
}

#[test]
fn a_stop_that_could_not_be_sent_goes_out_for_the_same_runs_when_the_daemon_is_back() {
    let mut scene = Scene::new();
    let id = scene.running("one");
    scene.esc();
    let session = scene.chat.session().clone();
    scene.input(Input::Answer(Answer::SessionStopped { session, result: Err(away()) }));
    assert!(scene.chat.stop.is_some());
    let effects = scene.input(Input::Answer(Answer::Approvals(Ok(Vec::new()))));
    assert_eq!(
        effects.iter().find(|effect| matches!(effect, Effect::StopRun { .. })),
        Some(&Effect::StopRun { run: id, force: false })
    );
}

#[test]
fn a_stop_that_was_sent_late_ends_with_its_runs() {
    for answered_first in [false, true] {
        let mut scene = Scene::new();
        let id = scene.running("one");
        scene.esc();
        let session = scene.chat.session().clone();
        scene.input(Input::Answer(Answer::SessionStopped { session, result: Err(away()) }));
        scene.input(Input::Answer(Answer::Approvals(Ok(Vec::new()))));
        let late = || Answer::RunStopped { run: run("u.1"), result: Err(not_found()) };
        if answered_first {
            scene.input(Input::Answer(late()));
            ended(&mut scene, &id);
        } else {
            ended(&mut scene, &id);
            assert!(scene.chat.stop.is_some(), "its answer is still out");
            scene.input(Input::Answer(late()));
        }
        assert!(scene.chat.stop.is_none(), "answered first: {answered_first}");
    }
}

#[test]
fn a_stop_of_a_message_that_could_not_be_sent_ends_with_it() {
    let mut scene = Scene::new();
    let id = sent_run(&scene.say("one")).unwrap();
    scene.esc();
    let session = scene.chat.session().clone();
    scene.input(Input::Answer(Answer::SessionStopped { session, result: Err(away()) }));
    scene.input(Input::Answer(Answer::RunStopped { run: id.clone(), result: Err(away()) }));
    assert!(scene.chat.stop.is_some());
    scene.input(Input::Answer(Answer::Sent { run: id, result: Err(away()) }));
    assert!(scene.chat.stop.is_none() && !scene.chat.is_active());
}

#[test]
fn a_refused_stop_of_another_sessions_run_leaves_the_stop_of_this_one() {
    let mut scene = Scene::new();
    scene.running("one");
    scene.esc();
    scene.input(Input::Answer(Answer::RunStopped { run: run("far"), result: Err(refused()) }));
    assert!(scene.chat.stop.is_some());
}

#[test]
fn a_refused_stop_is_said_and_over() {
    let mut scene = Scene::new();
    scene.running("one");
    scene.esc();
    let session = scene.chat.session().clone();
    scene.input(Input::Answer(Answer::SessionStopped { session, result: Err(refused()) }));
    assert!(scene.chat.stop.is_none() && scene.chat.is_active());
    assert!(scene.screen(80, 24).contains("the stop was refused: no"));
}

#[test]
fn the_texts_of_the_queue_come_back_once_and_in_their_order() {
    for early in [false, true] {
        let mut scene = Scene::new();
        let id = scene.running("one");
        let (two, three) = (scene.sent("two", "queued"), scene.sent("three", "queued"));
        scene.type_in("four");
        scene.esc();
        if early {
            // The ends of the queued runs may come before the answer of the stop.
            ended(&mut scene, &three);
            ended(&mut scene, &two);
        }
        let withdrawn = json!([{"runId": three.as_str(), "text": "three"}, {"runId": two.as_str(), "text": "two"}]);
        scene.stop_answered(read(json!({"aborted": true, "runIds": [id.as_str()], "withdrawn": withdrawn})));
        ended(&mut scene, &two);
        ended(&mut scene, &id);
        let lines: Vec<&str> = scene.chat.composer.text().lines().collect();
        let expected = if early { ["three", "two", "four"] } else { ["two", "three", "four"] };
        assert_eq!(lines, expected);
        assert!(scene.chat.stop.is_none() && !scene.chat.is_active());
    }
}

#[test]
fn a_text_comes_back_once_however_the_answers_of_a_stop_overtake_each_other() {
    let mut scene = Scene::new();
    scene.running("one");
    let two = scene.sent("two", "queued");
    let three = sent_run(&scene.say("three")).unwrap();
    scene.esc();
    scene.input(Input::Answer(Answer::RunStopped { run: three.clone(), result: Err(not_found()) }));
    // The answer to the one stop says nothing about the other, which brings this text.
    ended(&mut scene, &two);
    assert_eq!(scene.chat.composer.text(), "");
    let accepted = read(json!({"runId": three.as_str(), "sessionKey": "work", "state": "queued"}));
    scene.input(Input::Answer(Answer::Sent { run: three.clone(), result: Ok(Sent::Accepted(accepted)) }));
    ended(&mut scene, &three);
    let withdrawn = json!([{"runId": two.as_str(), "text": "two"}]);
    scene.stop_answered(read(json!({"aborted": true, "runIds": [], "withdrawn": withdrawn})));
    assert_eq!(scene.chat.composer.text(), "two\nthree", "and the one that no answer names is not lost");
}

#[test]
fn a_text_that_its_end_brought_back_is_not_brought_by_a_later_answer_too() {
    let mut scene = Scene::new();
    scene.running("one");
    let two = scene.sent("two", "queued");
    // A stop text that was typed as a message is known as a stop only by its answer.
    let stop = sent_run(&scene.say("stop")).unwrap();
    ended(&mut scene, &two);
    let withdrawn = json!([{"runId": two.as_str(), "text": "two"}]);
    let answer = Sent::Stopped(read(json!({"aborted": true, "runIds": [], "withdrawn": withdrawn})));
    scene.input(Input::Answer(Answer::Sent { run: stop, result: Ok(answer) }));
    assert_eq!(scene.chat.composer.text(), "two");
}

#[test]
fn a_queued_message_that_somebody_else_withdraws_comes_back() {
    let mut scene = Scene::new();
    scene.running("one");
    let two = scene.sent("two", "queued");
    ended(&mut scene, &two);
    assert_eq!(scene.chat.composer.text(), "two");
}

#[test]
fn a_message_that_is_refused_comes_back() {
    let mut scene = Scene::new();
    let id = sent_run(&scene.say("hello")).unwrap();
    scene.type_in("more");
    scene.input(Input::Answer(Answer::Sent { run: id, result: Err(refused()) }));
    assert_eq!(scene.chat.composer.text(), "hello\nmore");
    assert!(!scene.chat.is_active());
}

#[test]
fn a_message_whose_answer_was_lost_is_looked_for_before_it_is_sent_twice() {
    let mut scene = Scene::new();
    let id = sent_run(&scene.say("hello")).unwrap();
    scene.input(Input::Answer(Answer::Sent { run: id.clone(), result: Err(away()) }));
    assert_eq!(scene.chat.composer.text(), "hello");
    let effects = scene.input(Input::Answer(Answer::Approvals(Ok(Vec::new()))));
    assert!(effects.contains(&Effect::Ask(Question::Run(id.clone()))), "{effects:?}");
    let seen = read(view(id.as_str(), json!({"sessionKey": "work", "text": "hello"})));
    let effects = scene.input(Input::Answer(Answer::Run { run: id.clone(), result: Ok(seen) }));
    assert_eq!(effects, [Effect::Follow { run: id, after: 0 }]);
    assert!(scene.chat.composer.is_empty() && scene.chat.is_active());
}

#[test]
fn a_run_that_was_started_elsewhere_is_found_and_followed_once() {
    let mut scene = Scene::new();
    let key = scene.chat.session().clone();
    let session = || {
        let row = json!({"key": "work", "state": "active", "createdAt": "", "lastUsedAt": "", "activeRuns": ["r7"], "turns": 0});
        Input::Answer(Answer::Session { key: key.clone(), result: Ok(read(row)) })
    };
    let ask = Effect::Ask(Question::Run(run("r7")));
    assert_eq!(scene.input(session()), [ask]);
    assert_eq!(scene.input(session()), []);
    let seen =
        || Input::Answer(Answer::Run { run: run("r7"), result: Ok(read(view("r7", json!({"sessionKey": "work"})))) });
    assert_eq!(scene.input(seen()), [Effect::Follow { run: run("r7"), after: 0 }]);
    assert_eq!((scene.input(session()), scene.input(seen())), (vec![], vec![]));
    assert_eq!(stops(&scene.esc()), [(true, false)]);
}

#[test]
fn del_stops_the_run_that_was_chosen_wherever_its_line_has_moved() {
    let mut scene = Scene::new();
    scene.say("/runs");
    let listed = |ids: &[&str]| {
        let rows = ids.iter().map(|id| read(view(id, json!({"sessionKey": "far"})))).collect();
        Input::Answer(Answer::Active(Ok(rows)))
    };
    let stop = |id: &str, force| vec![Effect::StopRun { run: run(id), force }];
    scene.input(listed(&["r1", "r2", "r3"]));
    scene.key(KeyCode::Down);
    // An older run ends: the lines below it move up.
    scene.input(listed(&["r2", "r3"]));
    assert_eq!(scene.key(KeyCode::Delete), stop("r2", false));
    assert_eq!(scene.key(KeyCode::Delete), stop("r2", true), "pressed again it forces that one");
    scene.input(listed(&["r3"]));
    assert_eq!(scene.key(KeyCode::Delete), [], "what was chosen is gone, and its neighbour was not chosen");
    assert_eq!(scene.key(KeyCode::Enter), []);
    scene.key(KeyCode::Down);
    assert_eq!(scene.key(KeyCode::Delete), stop("r3", false));
}

#[test]
fn ctrl_c_clears_then_stops_then_asks() {
    let mut scene = Scene::new();
    scene.running("work");
    scene.type_in("draft");
    assert_eq!(scene.control('c'), []);
    assert!(scene.chat.composer.is_empty());
    assert_eq!(stops(&scene.control('c')), [(true, false)]);
    assert_eq!(scene.control('c'), []);
    assert!(scene.screen(80, 24).contains("1 run not over. Leave?"));
    assert_eq!(scene.control('c'), [], "it never ends while something runs without being told to");
    scene.esc();
    scene.key(KeyCode::Up);
    assert_eq!(scene.chat.composer.text(), "draft");
}

#[test]
fn who_stops_and_leaves_waits_for_the_end() {
    let mut scene = Scene::new();
    let id = scene.running("work");
    scene.say("/quit");
    assert_eq!(stops(&scene.key(KeyCode::Char('s'))), [(true, false)]);
    assert!(!scene.stop_answered(read(json!({"aborted": true, "runIds": []}))).contains(&Effect::Leave));
    assert!(ended(&mut scene, &id).contains(&Effect::Leave));
}

#[test]
fn a_lost_daemon_is_told_and_the_next_answer_ends_that() {
    let mut scene = Scene::new();
    let id = scene.running("work");
    scene.input(Input::Seen(id.clone(), RunSeen::Lost("gone".into())));
    assert!(scene.screen(80, 24).contains("not connected"));
    scene.input(Input::Seen(id, RunSeen::Back));
    assert!(scene.screen(80, 24).contains("● live"));
}

#[test]
fn older_pages_are_asked_for_once_when_the_top_is_seen() {
    let mut scene = Scene::new();
    let session = scene.chat.session().clone();
    let page = |next: Option<&str>| read(json!({"items": [], "nextCursor": next}));
    scene.input(Input::Answer(Answer::History {
        session: session.clone(),
        which: Page::Newest,
        result: Ok(page(Some("7"))),
    }));
    let ask = Effect::Ask(Question::History { session: session.clone(), page: Page::Before("7".into()) });
    assert_eq!(scene.input(Input::TopSeen), [ask]);
    assert_eq!(scene.input(Input::TopSeen), []);
    let which = Page::Before("7".into());
    scene.input(Input::Answer(Answer::History { session, which, result: Ok(page(None)) }));
    assert_eq!(scene.input(Input::TopSeen), []);
}

#[test]
fn a_stop_text_that_stopped_nothing_says_so() {
    let mut scene = Scene::new();
    let id = sent_run(&scene.say("stop")).unwrap();
    let answer = Sent::Stopped(read(json!({"aborted": false, "runIds": []})));
    scene.input(Input::Answer(Answer::Sent { run: id, result: Ok(answer) }));
    assert!(scene.screen(80, 24).contains("nothing to stop"));
    assert!(!scene.chat.is_active());
}

#[test]
fn a_misused_command_comes_back_to_be_mended() {
    let mut scene = Scene::new();
    scene.say("/hold that thought");
    assert_eq!(scene.chat.composer.text(), "/hold that thought");
    scene.control('c');
    scene.input(Input::Paste("/nothing".into()));
    scene.key(KeyCode::Enter);
    assert_eq!(scene.chat.composer.text(), "/nothing");
}

#[test]
fn a_slash_alone_does_nothing_at_enter() {
    let mut scene = Scene::new();
    scene.running("work");
    assert_eq!(scene.say("/"), []);
    assert_eq!(scene.chat.composer.text(), "/stop");
    assert!(sent_run(&scene.key(KeyCode::Enter)).is_some(), "the second Enter does it");
}

#[test]
fn a_stop_text_that_could_not_be_sent_is_a_stop_that_goes_out_later() {
    let mut scene = Scene::new();
    let id = scene.running("work");
    let stop = sent_run(&scene.say("/stop")).unwrap();
    scene.input(Input::Answer(Answer::Sent { run: stop, result: Err(away()) }));
    assert!(scene.chat.composer.is_empty() && scene.chat.stop.is_some());
    let effects = scene.input(Input::Answer(Answer::Approvals(Ok(Vec::new()))));
    assert!(effects.contains(&Effect::StopRun { run: id, force: false }), "{effects:?}");
}

#[test]
fn what_is_typed_at_the_question_whether_to_leave_answers_it_with_no() {
    for first in ['h', 'y', 'n', '/', '1'] {
        let mut scene = Scene::new();
        assert_eq!(scene.control('c'), []);
        scene.key(KeyCode::Char(first));
        assert!(scene.chat.menu.is_none(), "{first} takes the question back");
        scene.type_in(" there");
        assert_eq!(scene.chat.composer.text(), format!("{first} there"), "and is typed");
        assert!(!scene.key(KeyCode::Enter).contains(&Effect::Leave));
    }
    // While something runs, two letters stand on the screen as answers; every other one is text.
    let mut scene = Scene::new();
    scene.running("work");
    scene.input(Input::Paste("/quit".into()));
    scene.key(KeyCode::Enter);
    scene.type_in("and then");
    assert_eq!(scene.chat.composer.text(), "and then");
    assert!(!scene.key(KeyCode::Enter).contains(&Effect::Leave));
}
