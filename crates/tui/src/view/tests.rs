//! Snapshots of every state of the screen, at 80x24 and at 200x60.

use crossterm::event::KeyCode;
use quell_client::term::{ColorMode, Glyphs, Language};
use quell_client::test_support::daemon::run_view;
use quell_client::test_support::receipts;
use quell_protocol::{AgentId, Amendment, AmendmentKind, EventKind, Receipt, RunId, Verdict};
use ratatui_core::style::Color;
use rstest::rstest;
use serde_json::json;

use crate::effects::{
    ChatEffect, ChatInput, ChatRunUpdate, DaemonFailure, DaemonFailureKind, DaemonResponse, HistorySlice,
};
use crate::harness::{ChatHarness, from_json, run_id, sent_run_id};
use crate::theme::TerminalCapabilities;

/// A chat in this state.
fn played(scene: fn(&mut ChatHarness)) -> ChatHarness {
    let mut chat = ChatHarness::new();
    scene(&mut chat);
    chat
}

fn streaming(scene: &mut ChatHarness) {
    let id = scene.submit_running("What does this crate do? List its parts.");
    scene.receive_event(&id, from_json(json!({"type": "thinking.delta", "text": "I should look at the files first."})));
    scene.receive_text(&id, "I look at the **manifest**.");
    scene.receive_tool_started(&id, "c1", "read_file", json!({"path": "Cargo.toml"}));
    scene.receive_tool_ended(&id, "c1", "ok", "[package]\nname = \"quell\"");
    scene.receive_event(&id, from_json(json!({"type": "step.started", "step": 2})));
    scene.receive_text(
        &id,
        "# Parts\n\n1. `protocol`: the words\n2. `kernel`: the rules\n\n```rust\nfn main() {}\n```\n\nIt is *qui",
    );
    scene.advance_time(3_000);
}

fn unfolded(scene: &mut ChatHarness) {
    streaming(scene);
    scene.press_control('o');
}

fn tools(scene: &mut ChatHarness) {
    let id = scene.submit_running("Test it.");
    scene.receive_tool_started(&id, "c1", "shell", json!({"command": "cargo build"}));
    scene.receive_tool_ended(&id, "c1", "ok", "Finished\n[exit code 0]");
    scene.receive_tool_started(
        &id,
        "c2",
        "shell",
        json!({"command": "cargo test --workspace --all-features -- --nocapture --test-threads 1 one two three"}),
    );
    scene.receive_tool_ended(&id, "c2", "ok", "1 failed\n[exit code 101]");
    scene.receive_tool_started(&id, "c3", "write_file", json!({"path": "a.txt"}));
    scene.receive_tool_ended(&id, "c3", "denied", "not allowed");
    scene.receive_tool_started(&id, "c4", "spawn_agent", json!({"agent": "scout", "prompt": "look around"}));
    let sub_run =
        json!({"agent": "scout", "parent": id.as_str(), "sessionKey": "sub", "startedAt": "2026-03-01T12:00:00Z"});
    scene.receive_active_runs(json!([run_view("r9", sub_run)]));
    scene.advance_time(12_000);
}

fn queued(scene: &mut ChatHarness) {
    streaming(scene);
    scene.submit_accepted("And then the tests, please.", "queued");
    for text in ["Also the docs.", "And the changelog.", "And the weather."] {
        scene.submit_accepted(text, "queued");
    }
    scene.type_text("typing the next");
}

fn stopping(scene: &mut ChatHarness) {
    tools(scene);
    scene.press_esc();
    let id = scene.chat.runs[0].id.clone();
    let held = json!([
        {"kind": "model_request", "id": 1, "label": "m", "openedAt": {"at": "2026-03-01T12:00:01Z"},
         "releasedAt": {"at": "2026-03-01T12:00:12Z", "ms": 0.4}, "how": "closed"},
        {"kind": "process", "id": 2, "label": "cargo test", "openedAt": {"at": "2026-03-01T12:00:01Z"}, "how": ""},
        {"kind": "process", "id": 3, "label": "sleep 600", "openedAt": {"at": "2026-03-01T12:00:01Z"}, "how": ""},
        {"kind": "run", "id": 4, "label": "r9", "openedAt": {"at": "2026-03-01T12:00:01Z"}, "how": ""},
    ]);
    let change = json!({"sessionKey": "work", "state": "ending", "held": held, "deliveredAt": {"at": "2026-03-01T12:00:12Z", "ms": 0.1}});
    scene.receive_run(id.as_str(), change);
    scene.receive_stop_answer(json!({"aborted": true, "runIds": []}));
    scene.advance_time(400);
}

fn forcing(scene: &mut ChatHarness) {
    stopping(scene);
    scene.press_esc();
}

/// Begins a run that is to be stopped in its second step.
fn poem(scene: &mut ChatHarness) -> RunId {
    let id = scene.submit_running("Write a poem about receipts.");
    scene.receive_text(&id, "A receipt is a promise kept, and th");
    id
}

fn end_poem(scene: &mut ChatHarness, id: &RunId, receipt: Receipt) {
    let (verdict, receipt) = (receipt.verdict.clone(), Box::new(receipt));
    scene.receive_event(id, EventKind::Ending { verdict: verdict.clone() });
    scene.receive_event(id, EventKind::Ended { verdict, receipt, steps: 2, text: None });
}

fn stopped(scene: &mut ChatHarness) {
    let id = poem(scene);
    scene.press_esc();
    scene.receive_stop_answer(json!({"aborted": true, "runIds": []}));
    end_poem(scene, &id, receipts::stopped_receipt());
    let at = "2026-03-01T12:00:00Z";
    let items = json!({"items": [{"runId": "u.1", "role": "assistant", "text": "A", "partial": true, "at": at}]});
    scene.receive_history(HistorySlice::LastTurn, items);
}

fn leftovers(scene: &mut ChatHarness) {
    let id = poem(scene);
    end_poem(scene, &id, receipts::leftover_receipt());
}

fn failed(scene: &mut ChatHarness) {
    let verdict = Verdict::Failed { code: "model_error".into(), message: "the provider answered 500".into() };
    let id = scene.submit_running("hello");
    scene.receive_end(&id, Receipt { verdict, ..receipts::stopped_receipt() });
}

fn approval(scene: &mut ChatHarness) {
    let id = scene.submit_running("Clean up.");
    let arguments =
        json!({"command": "rm -rf build && echo \u{202e}done", "cwd": "/srv/project", "input": "yes\nreally\n"});
    let asked = json!({"type": "approval.requested", "id": "a1", "callId": "c1", "tool": "shell", "arguments": arguments,
        "expiresAt": "2026-03-01T12:05:00Z"});
    scene.receive_event(&id, from_json(asked));
    let row = json!([{"id": "a1", "runId": id.as_str(), "sessionKey": "work", "agent": "main", "principal": "admin",
        "callId": "c1", "tool": "shell", "arguments": arguments, "requestedAt": "2026-03-01T12:00:00Z",
        "expiresAt": "2026-03-01T12:05:00Z", "state": "pending"}]);
    scene.receive_approvals(row);
    scene.advance_time(2_000);
}

fn approval_while_typing(scene: &mut ChatHarness) {
    approval(scene);
    scene.send_input(ChatInput::Paste("half a thought".into()));
}

fn completion(scene: &mut ChatHarness) {
    streaming(scene);
    scene.type_text("/");
}

fn sessions(scene: &mut ChatHarness) {
    scene.submit_text("/sessions");
    let row = |key: &str, active: serde_json::Value, at: &str| {
        json!({"key": key, "state": "ready", "agent": "main", "createdAt": at,
        "lastUsedAt": at, "activeRuns": active, "turns": 3})
    };
    let rows = json!([
        row("work", json!([]), "2026-03-01T11:59:00Z"),
        row("cli:2026-02-28-9f3a", json!(["r7"]), "2026-03-01T11:59:58Z")
    ]);
    scene.respond(DaemonResponse::Sessions(Ok(from_json(rows))));
    scene.press_key(KeyCode::Down);
}

fn runs(scene: &mut ChatHarness) {
    scene.submit_text("/runs");
    scene.receive_active_runs(json!([
        run_view("r1", json!({"text": "Summarise the news", "startedAt": "2026-03-01T11:58:00Z"})),
        run_view("r2", json!({"text": "Clean the cache", "state": "queued", "sessionKey": "cron", "agent": "scout"}))
    ]));
}

fn nothing_runs(scene: &mut ChatHarness) {
    scene.submit_text("/runs");
    scene.receive_active_runs(json!([]));
}

fn leave(scene: &mut ChatHarness) {
    scene.press_control('c');
}

fn leave_running(scene: &mut ChatHarness) {
    streaming(scene);
    scene.submit_text("/quit");
}

fn lost(scene: &mut ChatHarness) {
    streaming(scene);
    let id = scene.chat.runs[0].id.clone();
    scene.receive_update(id, ChatRunUpdate::Disconnected("connection refused".into()));
    scene.type_text("typed meanwhile");
    scene.advance_time(5_000);
}

fn unstopped(scene: &mut ChatHarness) {
    lost(scene);
    scene.press_esc();
    let failure = DaemonFailure { text: "connection refused".into(), kind: DaemonFailureKind::Unreachable };
    scene.receive_stop_failure(failure);
}

fn held(scene: &mut ChatHarness) {
    let hold = from_json(json!({"held": true, "reason": "release"}));
    scene.respond(DaemonResponse::Hold { result: Ok(hold), by_user: true });
}

fn refused(scene: &mut ChatHarness) {
    let id = sent_run_id(&scene.submit_text("hello")).unwrap();
    let text = "New runs are on hold (held): release".into();
    scene.receive_unsent(id, DaemonFailure { text, kind: DaemonFailureKind::Refused });
}

fn history(scene: &mut ChatHarness) {
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
    scene.receive_history(HistorySlice::NewestPage, items);
}

fn empty(_: &mut ChatHarness) {}

fn steered(scene: &mut ChatHarness) {
    streaming(scene);
    scene.press_key(KeyCode::Tab);
    scene.advance_time(7_000);
    let sent = sent_run_id(&scene.submit_text("Only the public parts, please.")).unwrap();
    let active = scene.chat.runs[0].id.clone();
    let answer =
        json!({"runId": active.as_str(), "sessionKey": "work", "state": "steered", "messageId": sent.as_str()});
    scene.respond(DaemonResponse::Sent { run: sent, result: Ok(from_json(answer)) });
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
#[case("help", |scene: &mut ChatHarness| drop(scene.submit_text("/help")))]
#[case("completion", completion)]
#[case("sessions", sessions)]
#[case("runs", runs)]
#[case("nothing_runs", nothing_runs)]
#[case("agents", |scene: &mut ChatHarness| drop(scene.submit_text("/agents")))]
#[case("models", |scene: &mut ChatHarness| drop(scene.submit_text("/model")))]
#[case("leave", leave)]
#[case("leave_running", leave_running)]
#[case("lost", lost)]
#[case("unstopped", unstopped)]
#[case("held", held)]
#[case("refused", refused)]
#[case("history", history)]
fn the_screen_looks_so(#[case] name: &str, #[case] scene: fn(&mut ChatHarness)) {
    let classic = played(scene).screen_text(80, 24);
    let large = played(scene).screen_text(200, 60);
    insta::assert_snapshot!(name, format!("80x24\n{classic}\n200x60\n{large}"));
}

#[rstest]
#[case("tiny_streaming", streaming)]
#[case("tiny_stopping", stopping)]
#[case("tiny_approval", approval)]
#[case("tiny_completion", completion)]
fn a_tiny_screen_still_says_what_matters(#[case] name: &str, #[case] scene: fn(&mut ChatHarness)) {
    insta::assert_snapshot!(name, played(scene).screen_text(20, 5));
}

#[rstest]
#[case("ascii_tools", tools)]
#[case("ascii_stopping", stopping)]
#[case("ascii_completion", completion)]
fn without_unicode_the_screen_is_ascii(#[case] name: &str, #[case] scene: fn(&mut ChatHarness)) {
    let ascii = TerminalCapabilities { color: ColorMode::Never, glyphs: Glyphs::Ascii };
    let shown = played(scene).screen_text_with(80, 24, ascii);
    assert!(shown.is_ascii(), "{shown}");
    insta::assert_snapshot!(name, shown);
}

#[test]
fn the_screen_speaks_the_persons_language() {
    let [korean, chinese] = [Language::Korean, Language::Chinese].map(|language| {
        let mut scene = ChatHarness::with_language(language);
        scene.submit_text("/help");
        scene.screen_text(80, 30)
    });
    insta::assert_snapshot!("languages", format!("{korean}\n{chinese}"));
}

const COLORED: TerminalCapabilities = TerminalCapabilities { color: ColorMode::Auto, glyphs: Glyphs::Unicode };

/// Red is used for stopping only.
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
fn red_means_stopping(#[case] scene: fn(&mut ChatHarness), #[case] red: bool) {
    let screen = played(scene).render_buffer(80, 24, COLORED);
    assert_eq!(screen.content.iter().any(|cell| cell.fg == Color::Red), red);
}

#[test]
fn without_colour_nothing_is_coloured() {
    let plain = TerminalCapabilities { color: ColorMode::Never, ..COLORED };
    let plain = played(stopping).render_buffer(80, 24, plain);
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
}

#[test]
fn no_cell_ever_holds_a_control_character() {
    let hostile = "a\u{1b}[2J\u{7}\r\n\u{9b}31m\u{202e}b\u{0}";
    let (mut scene, id) = ChatHarness::running("x");
    scene.receive_text(&id, hostile);
    scene.receive_tool_started(&id, "c1", hostile, json!({"command": hostile, hostile: hostile}));
    scene.receive_event(
        &id,
        from_json(json!({"type": "tool.output", "callId": "c1", "stream": "stdout", "text": hostile})),
    );
    scene.press_control('o');
    let agent = AgentId::parse("an\u{202e}agent").unwrap();
    scene.chat.agent = Some(agent);
    scene.chat.hold.reason = Some(hostile.into());
    scene.receive_update(run_id("u.1"), ChatRunUpdate::Disconnected(hostile.into()));
    let picture = scene.render_buffer(80, 24, COLORED);
    let bad = |cell: &&ratatui_core::buffer::Cell| cell.symbol().chars().any(|c| c.is_control() || c == '\u{202e}');
    assert_eq!(picture.content.iter().find(bad), None);
}

#[test]
fn exit_messages_can_be_pasted_into_a_shell() {
    assert_eq!(super::shell_quote("cli:2026-03-01-ab"), "cli:2026-03-01-ab");
    assert_eq!(super::shell_quote("my 'own' key"), r"'my '\''own'\'' key'");
}

#[test]
fn a_message_on_its_way_is_not_counted_as_a_run_and_its_text_is_kept() {
    let mut scene = ChatHarness::new();
    scene.submit_text("half way");
    scene.type_text("a thought");
    let said = scene.chat.exit_messages().join("\n");
    assert!(said.ends_with("perhaps not sent:\nhalf way\nnot sent:\na thought"), "{said}");
    assert!(!said.contains("not over"), "{said}");
    let (scene, _) = ChatHarness::running("work");
    let said = scene.chat.exit_messages().join("\n");
    assert!(said.contains("1 run not over") && !said.contains("not sent"), "{said}");
}

#[test]
fn amendments_are_shown_below_the_receipt() {
    let amendment = Amendment {
        at: receipts::instant_after_stop(3012.0),
        resource: 2,
        kind: AmendmentKind::LateResult,
        text: "the MCP server files finished the call".into(),
        leftovers: Vec::new(),
    };
    let mut scene = ChatHarness::new();
    let id = poem(&mut scene);
    end_poem(&mut scene, &id, Receipt { amendments: vec![amendment], ..receipts::stopped_receipt() });
    let screen = scene.screen_text(80, 24);
    assert!(screen.contains("3 s later: the MCP server files finished the call"), "{screen}");
}

/// A write with its diff, and a plan.
fn edits(scene: &mut ChatHarness) {
    let id = scene.submit_running("Correct it.");
    scene.receive_tool_started(&id, "c1", "edit_file", json!({"path": "a.txt"}));
    let diff = "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n";
    let ended = json!({"type": "tool.ended", "callId": "c1", "end": "ok", "output": "Replaced 1 place", "diff": diff, "ms": 3.0});
    scene.receive_event(&id, from_json(ended));
    scene.receive_tool_started(&id, "c2", "todo", json!({"items": []}));
    scene.receive_tool_ended(&id, "c2", "ok", "1 of 3 done\n[x] Look\n[>] Act\n[ ] Test");
    let completed = Receipt { verdict: Verdict::Completed, leftovers: Vec::new(), ..receipts::stopped_receipt() };
    scene.receive_end(&id, completed);
}

#[test]
fn undo_takes_back_the_newest_run_that_changed_files() {
    let mut scene = ChatHarness::new();
    assert_eq!(scene.submit_text("/undo"), []);
    assert!(scene.screen_text(80, 24).contains("No run here has changed files"));
    edits(&mut scene);
    let id = scene.submit_running("And now?");
    scene.receive_stopped(&id);
    let effects = scene.submit_text("/undo");
    assert!(matches!(&effects[..], [ChatEffect::UndoRun(run)] if *run != id), "{effects:?}");
    assert_eq!(scene.submit_text("/undo r7"), [ChatEffect::UndoRun(run_id("r7"))]);
    let report = json!({"runId": "r1", "files": [{"path": "a.txt", "change": "restored"}], "unchanged": [],
        "notCovered": ["commands (`shell`): 1"]});
    scene.respond(DaemonResponse::Undone(Ok(from_json(report))));
    let screen = scene.screen_text(80, 40);
    assert!(screen.contains("Put back: a.txt; not covered: commands (`shell`): 1"), "{screen}");
    let failure = DaemonFailure { text: "nothing was undone".into(), kind: DaemonFailureKind::Refused };
    scene.respond(DaemonResponse::Undone(Err(failure)));
    assert!(scene.screen_text(80, 40).contains("nothing was undone"));
}

#[test]
fn an_edit_shows_its_lines_a_plan_its_items_and_the_end_how_to_undo() {
    let mut scene = ChatHarness::new();
    edits(&mut scene);
    let folded = scene.screen_text(80, 30);
    assert!(folded.contains("ok  +1 -1") && !folded.contains("+2"), "{folded}");
    for line in ["✓ Look", "● Act", "○ Test", "quell undo r1 takes the file changes back"] {
        assert!(folded.contains(line), "{line}: {folded}");
    }
    scene.press_control('o');
    let open = scene.screen_text(80, 40);
    for line in ["│ --- a/a.txt", "│ -two", "│ +2"] {
        assert!(open.contains(line), "{line}: {open}");
    }
}
