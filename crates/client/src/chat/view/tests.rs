//! Every state of the screen as a picture, in the classic window and in a large one.

use crossterm::event::KeyCode;
use quell_protocol::{AgentId, Verdict};
use ratatui::style::Color as Ink;
use rstest::rstest;
use serde_json::json;

use super::super::effects::{Answer, Effect, Failure, FailureKind, Input, Page, RunSeen};
use super::super::look::Look;
use super::super::scene::{Scene, read, run};
use crate::fake::daemon::view;
use crate::fake::receipts;
use crate::term::{Color, Glyphs, Language};

fn streaming() -> Scene {
    let mut scene = Scene::new();
    let id = scene.running("What does this crate do? List its parts.");
    scene.event(&id, read(json!({"type": "thinking.delta", "text": "I should look at the files first."})));
    scene.text(&id, "I look at the **manifest**.");
    scene.tool(&id, "c1", "read_file", json!({"path": "Cargo.toml"}));
    scene.tool_over(&id, "c1", "ok", "[package]\nname = \"quell\"");
    scene.event(&id, read(json!({"type": "step.started", "step": 2})));
    scene.text(
        &id,
        "# Parts\n\n1. `protocol`: the words\n2. `kernel`: the rules\n\n```rust\nfn main() {}\n```\n\nIt is *qui",
    );
    scene.after(3_000);
    scene
}

fn unfolded() -> Scene {
    let mut scene = streaming();
    scene.control('o');
    scene
}

fn tools() -> Scene {
    let mut scene = Scene::new();
    let id = scene.running("Test it.");
    scene.tool(&id, "c1", "shell", json!({"command": "cargo build"}));
    scene.tool_over(&id, "c1", "ok", "Finished\n[exit code 0]");
    scene.tool(
        &id,
        "c2",
        "shell",
        json!({"command": "cargo test --workspace --all-features -- --nocapture --test-threads 1 one two three"}),
    );
    scene.tool_over(&id, "c2", "ok", "1 failed\n[exit code 101]");
    scene.tool(&id, "c3", "write_file", json!({"path": "a.txt"}));
    scene.tool_over(&id, "c3", "denied", "not allowed");
    scene.tool(&id, "c4", "spawn_agent", json!({"agent": "scout", "prompt": "look around"}));
    let rows = json!([view(
        "r9",
        json!({"agent": "scout", "parent": id.as_str(), "sessionKey": "sub", "startedAt": "2026-03-01T12:00:00Z"})
    )]);
    scene.input(Input::Answer(Answer::Active(Ok(read(rows)))));
    scene.after(12_000);
    scene
}

fn queued() -> Scene {
    let mut scene = streaming();
    scene.sent("And then the tests, please.", "queued");
    for text in ["Also the docs.", "And the changelog.", "And the weather."] {
        scene.sent(text, "queued");
    }
    scene.type_in("typing the next");
    scene
}

fn stopping() -> Scene {
    let mut scene = tools();
    scene.esc();
    let id = scene.chat.runs[0].id.clone();
    let held = json!([
        {"kind": "model_request", "id": 1, "label": "m", "openedAt": {"at": "2026-03-01T12:00:01Z"},
         "releasedAt": {"at": "2026-03-01T12:00:12Z", "ms": 0.4}, "how": "closed"},
        {"kind": "process", "id": 2, "label": "cargo test", "openedAt": {"at": "2026-03-01T12:00:01Z"}, "how": ""},
        {"kind": "process", "id": 3, "label": "sleep 600", "openedAt": {"at": "2026-03-01T12:00:01Z"}, "how": ""},
        {"kind": "run", "id": 4, "label": "r9", "openedAt": {"at": "2026-03-01T12:00:01Z"}, "how": ""},
    ]);
    let change = json!({"sessionKey": "work", "state": "ending", "held": held, "deliveredAt": {"at": "2026-03-01T12:00:12Z", "ms": 0.1}});
    let seen = read(view(id.as_str(), change));
    scene.input(Input::Answer(Answer::Run { run: id, result: Ok(seen) }));
    scene.stop_answered(read(json!({"aborted": true, "runIds": []})));
    scene.after(400);
    scene
}

fn forcing() -> Scene {
    let mut scene = stopping();
    scene.esc();
    scene
}

fn ended(kind: fn(&mut Scene) -> (quell_protocol::Receipt, Verdict)) -> Scene {
    let mut scene = Scene::new();
    let id = scene.running("Write a poem about receipts.");
    scene.text(&id, "A receipt is a promise kept, and th");
    let (receipt, verdict) = kind(&mut scene);
    scene.event(&id, quell_protocol::EventKind::Ending { verdict: verdict.clone() });
    scene.event(&id, quell_protocol::EventKind::Ended { verdict, receipt: Box::new(receipt), steps: 2, text: None });
    scene
}

fn stopped() -> Scene {
    let mut scene = ended(|scene| {
        scene.esc();
        scene.stop_answered(read(json!({"aborted": true, "runIds": []})));
        (receipts::stopped(), receipts::by_user())
    });
    let at = "2026-03-01T12:00:00Z";
    let items = json!({"items": [{"runId": "u.1", "role": "assistant", "text": "A", "partial": true, "at": at}]});
    let session = scene.chat.session().clone();
    scene.input(Input::Answer(Answer::History { session, which: Page::LastTurn, result: Ok(read(items)) }));
    scene
}

fn leftovers() -> Scene {
    ended(|_| (receipts::leftover(), receipts::by_user()))
}

fn failed() -> Scene {
    let verdict = Verdict::Failed { code: "model_error".into(), message: "the provider answered 500".into() };
    let mut scene = Scene::new();
    let id = scene.running("hello");
    let receipt = Box::new(quell_protocol::Receipt { verdict: verdict.clone(), ..receipts::stopped() });
    scene.event(&id, quell_protocol::EventKind::Ended { verdict, receipt, steps: 1, text: None });
    scene
}

fn approval() -> Scene {
    let mut scene = Scene::new();
    let id = scene.running("Clean up.");
    let arguments =
        json!({"command": "rm -rf build && echo \u{202e}done", "cwd": "/srv/project", "input": "yes\nreally\n"});
    let asked = json!({"type": "approval.requested", "id": "a1", "callId": "c1", "tool": "shell", "arguments": arguments,
        "expiresAt": "2026-03-01T12:05:00Z"});
    scene.event(&id, read(asked));
    let row = json!([{"id": "a1", "runId": id.as_str(), "sessionKey": "work", "agent": "main", "principal": "admin",
        "callId": "c1", "tool": "shell", "arguments": arguments, "requestedAt": "2026-03-01T12:00:00Z",
        "expiresAt": "2026-03-01T12:05:00Z", "state": "pending"}]);
    scene.input(Input::Answer(Answer::Approvals(Ok(read(row)))));
    scene.after(2_000);
    scene
}

fn approval_while_typing() -> Scene {
    let mut scene = approval();
    scene.input(Input::Paste("half a thought".into()));
    scene
}

fn help() -> Scene {
    let mut scene = Scene::new();
    scene.say("/help");
    scene
}

fn completion() -> Scene {
    let mut scene = streaming();
    scene.type_in("/");
    scene
}

fn sessions() -> Scene {
    let mut scene = Scene::new();
    scene.say("/sessions");
    let row = |key: &str, active: serde_json::Value, at: &str| {
        json!({"key": key, "state": "ready", "agent": "main", "createdAt": at,
        "lastUsedAt": at, "activeRuns": active, "turns": 3})
    };
    let rows = json!([
        row("work", json!([]), "2026-03-01T11:59:00Z"),
        row("cli:2026-02-28-9f3a", json!(["r7"]), "2026-03-01T11:59:58Z")
    ]);
    scene.input(Input::Answer(Answer::Sessions(Ok(read(rows)))));
    scene.key(KeyCode::Down);
    scene
}

fn runs() -> Scene {
    let mut scene = Scene::new();
    scene.say("/runs");
    let rows = json!([
        view("r1", json!({"text": "Summarise the news", "startedAt": "2026-03-01T11:58:00Z"})),
        view("r2", json!({"text": "Clean the cache", "state": "queued", "sessionKey": "cron", "agent": "scout"}))
    ]);
    scene.input(Input::Answer(Answer::Active(Ok(read(rows)))));
    scene
}

fn nothing_runs() -> Scene {
    let mut scene = Scene::new();
    scene.say("/runs");
    scene.input(Input::Answer(Answer::Active(Ok(Vec::new()))));
    scene
}

fn agents() -> Scene {
    let mut scene = Scene::new();
    scene.say("/agents");
    scene
}

fn models() -> Scene {
    let mut scene = Scene::new();
    scene.say("/model");
    scene
}

fn leave() -> Scene {
    let mut scene = Scene::new();
    scene.control('c');
    scene
}

fn leave_running() -> Scene {
    let mut scene = streaming();
    scene.say("/quit");
    scene
}

fn lost() -> Scene {
    let mut scene = streaming();
    let id = scene.chat.runs[0].id.clone();
    scene.input(Input::Seen(id, RunSeen::Lost("connection refused".into())));
    scene.type_in("typed meanwhile");
    scene.after(5_000);
    scene
}

fn unstopped() -> Scene {
    let mut scene = lost();
    scene.esc();
    let failure = Failure { text: "connection refused".into(), kind: FailureKind::Away };
    let session = scene.chat.session().clone();
    scene.input(Input::Answer(Answer::SessionStopped { session, result: Err(failure) }));
    scene
}

fn held() -> Scene {
    let mut scene = Scene::new();
    let hold = read(json!({"held": true, "reason": "release"}));
    scene.input(Input::Answer(Answer::Hold { result: Ok(hold), asked: true }));
    scene
}

fn refused() -> Scene {
    let mut scene = Scene::new();
    let effects = scene.say("hello");
    let id =
        effects.iter().find_map(|effect| if let Effect::Send { run, .. } = effect { Some(run.clone()) } else { None });
    let failure = Failure { text: "New runs are on hold (held): release".into(), kind: FailureKind::Refused };
    scene.input(Input::Answer(Answer::Sent { run: id.unwrap(), result: Err(failure) }));
    scene
}

fn history() -> Scene {
    let mut scene = Scene::new();
    let at = "2026-03-01T11:00:00Z";
    let items = json!({"items": [
        {"role": "reset", "text": "", "at": at},
        {"runId": "r1", "role": "user", "text": "How many files?", "at": at},
        {"runId": "r1", "role": "assistant", "text": "", "at": at, "calls": [{"id": "c1", "tool": "shell", "arguments": {"command": "ls | wc -l"}}]},
        {"runId": "r1", "role": "tool", "text": "12\n[exit code 0]", "callId": "c1", "end": "ok", "at": at},
        {"runId": "r1", "role": "assistant", "text": "There are **12** files.\n\n| kind | n |\n|-|-|\n| rust | 10 |\n| toml | 2 |", "at": at, "verdict": {"kind": "completed"}},
        {"runId": "r2", "role": "user", "text": "한국어로\n설명해 줘", "at": at},
        {"runId": "r2", "role": "assistant", "text": "파일이 열두 개", "partial": true, "at": at, "verdict": {"kind": "aborted", "reason": "user"}},
    ], "nextCursor": "9"});
    let session = scene.chat.session().clone();
    scene.input(Input::Answer(Answer::History { session, which: Page::Newest, result: Ok(read(items)) }));
    scene
}

fn empty() -> Scene {
    Scene::new()
}

fn steered() -> Scene {
    let mut scene = streaming();
    scene.key(KeyCode::Tab);
    scene.after(7_000);
    let effects = scene.say("Only the public parts, please.");
    let sent = super::super::scene::sent_run(&effects).unwrap();
    let active = scene.chat.runs[0].id.clone();
    let answer =
        json!({"runId": active.as_str(), "sessionKey": "work", "state": "steered", "messageId": sent.as_str()});
    scene.input(Input::Answer(Answer::Sent { run: sent, result: Ok(read(answer)) }));
    scene
}

#[rstest]
#[case("empty", empty)]
#[case("streaming", streaming)]
#[case("unfolded", unfolded)]
#[case("tools", tools)]
#[case("queued", queued)]
#[case("steered", steered)]
#[case("stopping", stopping)]
#[case("forcing", forcing)]
#[case("stopped", stopped)]
#[case("leftovers", leftovers)]
#[case("failed", failed)]
#[case("approval", approval)]
#[case("approval_while_typing", approval_while_typing)]
#[case("help", help)]
#[case("completion", completion)]
#[case("sessions", sessions)]
#[case("runs", runs)]
#[case("nothing_runs", nothing_runs)]
#[case("agents", agents)]
#[case("models", models)]
#[case("leave", leave)]
#[case("leave_running", leave_running)]
#[case("lost", lost)]
#[case("unstopped", unstopped)]
#[case("held", held)]
#[case("refused", refused)]
#[case("history", history)]
fn the_screen_looks_so(#[case] name: &str, #[case] scene: fn() -> Scene) {
    let classic = scene().screen(80, 24);
    let large = scene().screen(200, 60);
    insta::assert_snapshot!(name, format!("80x24\n{classic}\n200x60\n{large}"));
}

#[rstest]
#[case("tiny_streaming", streaming)]
#[case("tiny_stopping", stopping)]
#[case("tiny_approval", approval)]
#[case("tiny_completion", completion)]
fn a_tiny_screen_still_says_what_matters(#[case] name: &str, #[case] scene: fn() -> Scene) {
    insta::assert_snapshot!(name, scene().screen(20, 5));
}

#[rstest]
#[case("ascii_tools", tools)]
#[case("ascii_stopping", stopping)]
#[case("ascii_completion", completion)]
fn without_unicode_the_screen_is_ascii(#[case] name: &str, #[case] scene: fn() -> Scene) {
    let shown = scene().screen_in(80, 24, Look { color: Color::Never, glyphs: Glyphs::Ascii });
    assert!(shown.is_ascii(), "{shown}");
    insta::assert_snapshot!(name, shown);
}

#[test]
fn the_screen_speaks_the_persons_language() {
    let mut korean = Scene::speaking(Language::Korean);
    korean.say("/help");
    let mut chinese = Scene::speaking(Language::Chinese);
    chinese.say("/help");
    insta::assert_snapshot!("languages", format!("{}\n{}", korean.screen(80, 30), chinese.screen(80, 30)));
}

const COLORED: Look = Look { color: Color::Auto, glyphs: Glyphs::Unicode };

fn inks(scene: &mut Scene) -> Vec<Ink> {
    scene.picture(80, 24, COLORED).content.iter().map(|cell| cell.fg).collect()
}

/// Red belongs to stopping alone.
#[rstest]
#[case(stopping, true)]
#[case(forcing, true)]
#[case(unstopped, true)]
#[case(streaming, false)]
#[case(failed, false)]
#[case(leftovers, false)]
#[case(stopped, false)]
#[case(approval, false)]
#[case(lost, false)]
#[case(held, false)]
fn red_means_stopping(#[case] scene: fn() -> Scene, #[case] red: bool) {
    assert_eq!(inks(&mut scene()).contains(&Ink::Red), red);
}

#[test]
fn without_colour_nothing_is_coloured() {
    let plain = stopping().picture(80, 24, Look { color: Color::Never, glyphs: Glyphs::Unicode });
    assert!(plain.content.iter().all(|cell| cell.fg == Ink::Reset && cell.bg == Ink::Reset));
}

#[test]
fn no_cell_ever_holds_a_control_character() {
    let hostile = "a\u{1b}[2J\u{7}\r\n\u{9b}31m\u{202e}b\u{0}";
    let mut scene = Scene::new();
    let id = scene.running("x");
    scene.text(&id, hostile);
    scene.tool(&id, "c1", hostile, json!({"command": hostile, hostile: hostile}));
    scene.event(&id, read(json!({"type": "tool.output", "callId": "c1", "stream": "stdout", "text": hostile})));
    scene.control('o');
    let agent = AgentId::parse("an\u{202e}agent").unwrap();
    scene.chat.agent = Some(agent);
    scene.chat.hold.reason = Some(hostile.into());
    scene.input(Input::Seen(run("u.1"), RunSeen::Lost(hostile.into())));
    let picture = scene.picture(80, 24, COLORED);
    let bad = |cell: &&ratatui::buffer::Cell| cell.symbol().chars().any(|c| c.is_control() || c == '\u{202e}');
    assert_eq!(picture.content.iter().find(bad), None);
}

#[test]
fn what_is_said_on_leaving_can_be_pasted_into_a_shell() {
    assert_eq!(super::shell_word("cli:2026-03-01-ab"), "cli:2026-03-01-ab");
    assert_eq!(super::shell_word("my 'own' key"), r"'my '\''own'\'' key'");
}

#[test]
fn a_message_on_its_way_is_not_counted_as_a_run_and_its_text_is_kept() {
    let mut scene = Scene::new();
    scene.say("half way");
    scene.type_in("a thought");
    let said = scene.chat.farewell().join("\n");
    assert!(said.ends_with("perhaps not sent:\nhalf way\nnot sent:\na thought"), "{said}");
    assert!(!said.contains("not over"), "{said}");
    let mut scene = Scene::new();
    scene.running("work");
    let said = scene.chat.farewell().join("\n");
    assert!(said.contains("1 run not over") && !said.contains("not sent"), "{said}");
}

#[test]
fn what_became_known_after_the_end_stands_below_it() {
    let mut scene = ended(|_| {
        let receipt = quell_protocol::Receipt {
            amendments: vec![quell_protocol::Amendment {
                at: receipts::instant(3012.0),
                resource: 2,
                kind: quell_protocol::AmendmentKind::LateResult,
                text: "the MCP server files finished the call".into(),
                leftovers: Vec::new(),
            }],
            ..receipts::stopped()
        };
        (receipt, receipts::by_user())
    });
    let screen = scene.screen(80, 24);
    assert!(screen.contains("3 s later: the MCP server files finished the call"), "{screen}");
}
