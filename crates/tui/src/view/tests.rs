//! Snapshots of every state of the screen, at 80x24 and at 200x60.

use crossterm::event::KeyCode;
use quell_client::term::{ColorMode, Glyphs, Language};
use quell_client::test_support::daemon::run_view;
use quell_client::test_support::receipts;
use quell_protocol::{AgentId, Verdict};
use ratatui::style::Color;
use rstest::rstest;
use serde_json::json;

use crate::effects::{
    ChatEffect, ChatInput, ChatRunUpdate, DaemonFailure, DaemonFailureKind, DaemonResponse, HistorySlice,
};
use crate::harness::{ChatHarness, from_json, run_id};
use crate::theme::TerminalCapabilities;

fn streaming() -> ChatHarness {
    let mut scene = ChatHarness::new();
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
    scene
}

fn unfolded() -> ChatHarness {
    let mut scene = streaming();
    scene.press_control('o');
    scene
}

fn tools() -> ChatHarness {
    let mut scene = ChatHarness::new();
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
    let rows = json!([run_view(
        "r9",
        json!({"agent": "scout", "parent": id.as_str(), "sessionKey": "sub", "startedAt": "2026-03-01T12:00:00Z"})
    )]);
    scene.send_input(ChatInput::Response(DaemonResponse::ActiveRuns(Ok(from_json(rows)))));
    scene.advance_time(12_000);
    scene
}

fn queued() -> ChatHarness {
    let mut scene = streaming();
    scene.submit_accepted("And then the tests, please.", "queued");
    for text in ["Also the docs.", "And the changelog.", "And the weather."] {
        scene.submit_accepted(text, "queued");
    }
    scene.type_text("typing the next");
    scene
}

fn stopping() -> ChatHarness {
    let mut scene = tools();
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
    let seen = from_json(run_view(id.as_str(), change));
    scene.send_input(ChatInput::Response(DaemonResponse::Run { run: id, result: Ok(seen) }));
    scene.receive_stop_answer(from_json(json!({"aborted": true, "runIds": []})));
    scene.advance_time(400);
    scene
}

fn forcing() -> ChatHarness {
    let mut scene = stopping();
    scene.press_esc();
    scene
}

fn ended(kind: fn(&mut ChatHarness) -> (quell_protocol::Receipt, Verdict)) -> ChatHarness {
    let mut scene = ChatHarness::new();
    let id = scene.submit_running("Write a poem about receipts.");
    scene.receive_text(&id, "A receipt is a promise kept, and th");
    let (receipt, verdict) = kind(&mut scene);
    scene.receive_event(&id, quell_protocol::EventKind::Ending { verdict: verdict.clone() });
    scene.receive_event(
        &id,
        quell_protocol::EventKind::Ended { verdict, receipt: Box::new(receipt), steps: 2, text: None },
    );
    scene
}

fn stopped() -> ChatHarness {
    let mut scene = ended(|scene| {
        scene.press_esc();
        scene.receive_stop_answer(from_json(json!({"aborted": true, "runIds": []})));
        (receipts::stopped_receipt(), receipts::aborted_by_user())
    });
    let at = "2026-03-01T12:00:00Z";
    let items = json!({"items": [{"runId": "u.1", "role": "assistant", "text": "A", "partial": true, "at": at}]});
    let session = scene.chat.session().clone();
    scene.send_input(ChatInput::Response(DaemonResponse::History {
        session,
        page: HistorySlice::LastTurn,
        result: Ok(from_json(items)),
    }));
    scene
}

fn leftovers() -> ChatHarness {
    ended(|_| (receipts::leftover_receipt(), receipts::aborted_by_user()))
}

fn failed() -> ChatHarness {
    let verdict = Verdict::Failed { code: "model_error".into(), message: "the provider answered 500".into() };
    let mut scene = ChatHarness::new();
    let id = scene.submit_running("hello");
    let receipt = Box::new(quell_protocol::Receipt { verdict: verdict.clone(), ..receipts::stopped_receipt() });
    scene.receive_event(&id, quell_protocol::EventKind::Ended { verdict, receipt, steps: 1, text: None });
    scene
}

fn approval() -> ChatHarness {
    let mut scene = ChatHarness::new();
    let id = scene.submit_running("Clean up.");
    let arguments =
        json!({"command": "rm -rf build && echo \u{202e}done", "cwd": "/srv/project", "input": "yes\nreally\n"});
    let asked = json!({"type": "approval.requested", "id": "a1", "callId": "c1", "tool": "shell", "arguments": arguments,
        "expiresAt": "2026-03-01T12:05:00Z"});
    scene.receive_event(&id, from_json(asked));
    let row = json!([{"id": "a1", "runId": id.as_str(), "sessionKey": "work", "agent": "main", "principal": "admin",
        "callId": "c1", "tool": "shell", "arguments": arguments, "requestedAt": "2026-03-01T12:00:00Z",
        "expiresAt": "2026-03-01T12:05:00Z", "state": "pending"}]);
    scene.send_input(ChatInput::Response(DaemonResponse::Approvals(Ok(from_json(row)))));
    scene.advance_time(2_000);
    scene
}

fn approval_while_typing() -> ChatHarness {
    let mut scene = approval();
    scene.send_input(ChatInput::Paste("half a thought".into()));
    scene
}

fn help() -> ChatHarness {
    let mut scene = ChatHarness::new();
    scene.submit_text("/help");
    scene
}

fn completion() -> ChatHarness {
    let mut scene = streaming();
    scene.type_text("/");
    scene
}

fn sessions() -> ChatHarness {
    let mut scene = ChatHarness::new();
    scene.submit_text("/sessions");
    let row = |key: &str, active: serde_json::Value, at: &str| {
        json!({"key": key, "state": "ready", "agent": "main", "createdAt": at,
        "lastUsedAt": at, "activeRuns": active, "turns": 3})
    };
    let rows = json!([
        row("work", json!([]), "2026-03-01T11:59:00Z"),
        row("cli:2026-02-28-9f3a", json!(["r7"]), "2026-03-01T11:59:58Z")
    ]);
    scene.send_input(ChatInput::Response(DaemonResponse::Sessions(Ok(from_json(rows)))));
    scene.press_key(KeyCode::Down);
    scene
}

fn runs() -> ChatHarness {
    let mut scene = ChatHarness::new();
    scene.submit_text("/runs");
    let rows = json!([
        run_view("r1", json!({"text": "Summarise the news", "startedAt": "2026-03-01T11:58:00Z"})),
        run_view("r2", json!({"text": "Clean the cache", "state": "queued", "sessionKey": "cron", "agent": "scout"}))
    ]);
    scene.send_input(ChatInput::Response(DaemonResponse::ActiveRuns(Ok(from_json(rows)))));
    scene
}

fn nothing_runs() -> ChatHarness {
    let mut scene = ChatHarness::new();
    scene.submit_text("/runs");
    scene.send_input(ChatInput::Response(DaemonResponse::ActiveRuns(Ok(Vec::new()))));
    scene
}

fn agents() -> ChatHarness {
    let mut scene = ChatHarness::new();
    scene.submit_text("/agents");
    scene
}

fn models() -> ChatHarness {
    let mut scene = ChatHarness::new();
    scene.submit_text("/model");
    scene
}

fn leave() -> ChatHarness {
    let mut scene = ChatHarness::new();
    scene.press_control('c');
    scene
}

fn leave_running() -> ChatHarness {
    let mut scene = streaming();
    scene.submit_text("/quit");
    scene
}

fn lost() -> ChatHarness {
    let mut scene = streaming();
    let id = scene.chat.runs[0].id.clone();
    scene.send_input(ChatInput::RunUpdate(id, ChatRunUpdate::Disconnected("connection refused".into())));
    scene.type_text("typed meanwhile");
    scene.advance_time(5_000);
    scene
}

fn unstopped() -> ChatHarness {
    let mut scene = lost();
    scene.press_esc();
    let failure = DaemonFailure { text: "connection refused".into(), kind: DaemonFailureKind::Unreachable };
    let session = scene.chat.session().clone();
    scene.send_input(ChatInput::Response(DaemonResponse::SessionStopped { session, result: Err(failure) }));
    scene
}

fn held() -> ChatHarness {
    let mut scene = ChatHarness::new();
    let hold = from_json(json!({"held": true, "reason": "release"}));
    scene.send_input(ChatInput::Response(DaemonResponse::Hold { result: Ok(hold), by_user: true }));
    scene
}

fn refused() -> ChatHarness {
    let mut scene = ChatHarness::new();
    let effects = scene.submit_text("hello");
    let id = effects
        .iter()
        .find_map(|effect| if let ChatEffect::SendMessage { run, .. } = effect { Some(run.clone()) } else { None });
    let failure =
        DaemonFailure { text: "New runs are on hold (held): release".into(), kind: DaemonFailureKind::Refused };
    scene.send_input(ChatInput::Response(DaemonResponse::Sent { run: id.unwrap(), result: Err(failure) }));
    scene
}

fn history() -> ChatHarness {
    let mut scene = ChatHarness::new();
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
    scene.send_input(ChatInput::Response(DaemonResponse::History {
        session,
        page: HistorySlice::NewestPage,
        result: Ok(from_json(items)),
    }));
    scene
}

fn empty() -> ChatHarness {
    ChatHarness::new()
}

fn steered() -> ChatHarness {
    let mut scene = streaming();
    scene.press_key(KeyCode::Tab);
    scene.advance_time(7_000);
    let effects = scene.submit_text("Only the public parts, please.");
    let sent = crate::harness::sent_run_id(&effects).unwrap();
    let active = scene.chat.runs[0].id.clone();
    let answer =
        json!({"runId": active.as_str(), "sessionKey": "work", "state": "steered", "messageId": sent.as_str()});
    scene.send_input(ChatInput::Response(DaemonResponse::Sent { run: sent, result: Ok(from_json(answer)) }));
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
fn the_screen_looks_so(#[case] name: &str, #[case] scene: fn() -> ChatHarness) {
    let classic = scene().screen_text(80, 24);
    let large = scene().screen_text(200, 60);
    insta::assert_snapshot!(name, format!("80x24\n{classic}\n200x60\n{large}"));
}

#[rstest]
#[case("tiny_streaming", streaming)]
#[case("tiny_stopping", stopping)]
#[case("tiny_approval", approval)]
#[case("tiny_completion", completion)]
fn a_tiny_screen_still_says_what_matters(#[case] name: &str, #[case] scene: fn() -> ChatHarness) {
    insta::assert_snapshot!(name, scene().screen_text(20, 5));
}

#[rstest]
#[case("ascii_tools", tools)]
#[case("ascii_stopping", stopping)]
#[case("ascii_completion", completion)]
fn without_unicode_the_screen_is_ascii(#[case] name: &str, #[case] scene: fn() -> ChatHarness) {
    let shown =
        scene().screen_text_with(80, 24, TerminalCapabilities { color: ColorMode::Never, glyphs: Glyphs::Ascii });
    assert!(shown.is_ascii(), "{shown}");
    insta::assert_snapshot!(name, shown);
}

#[test]
fn the_screen_speaks_the_persons_language() {
    let mut korean = ChatHarness::with_language(Language::Korean);
    korean.submit_text("/help");
    let mut chinese = ChatHarness::with_language(Language::Chinese);
    chinese.submit_text("/help");
    insta::assert_snapshot!("languages", format!("{}\n{}", korean.screen_text(80, 30), chinese.screen_text(80, 30)));
}

const COLORED: TerminalCapabilities = TerminalCapabilities { color: ColorMode::Auto, glyphs: Glyphs::Unicode };

fn foreground_colors(scene: &mut ChatHarness) -> Vec<Color> {
    scene.render_buffer(80, 24, COLORED).content.iter().map(|cell| cell.fg).collect()
}

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
fn red_means_stopping(#[case] scene: fn() -> ChatHarness, #[case] red: bool) {
    assert_eq!(foreground_colors(&mut scene()).contains(&Color::Red), red);
}

#[test]
fn without_colour_nothing_is_coloured() {
    let plain =
        stopping().render_buffer(80, 24, TerminalCapabilities { color: ColorMode::Never, glyphs: Glyphs::Unicode });
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
}

#[test]
fn no_cell_ever_holds_a_control_character() {
    let hostile = "a\u{1b}[2J\u{7}\r\n\u{9b}31m\u{202e}b\u{0}";
    let mut scene = ChatHarness::new();
    let id = scene.submit_running("x");
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
    scene.send_input(ChatInput::RunUpdate(run_id("u.1"), ChatRunUpdate::Disconnected(hostile.into())));
    let picture = scene.render_buffer(80, 24, COLORED);
    let bad = |cell: &&ratatui::buffer::Cell| cell.symbol().chars().any(|c| c.is_control() || c == '\u{202e}');
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
    let mut scene = ChatHarness::new();
    scene.submit_running("work");
    let said = scene.chat.exit_messages().join("\n");
    assert!(said.contains("1 run not over") && !said.contains("not sent"), "{said}");
}

#[test]
fn amendments_are_shown_below_the_receipt() {
    let mut scene = ended(|_| {
        let receipt = quell_protocol::Receipt {
            amendments: vec![quell_protocol::Amendment {
                at: receipts::instant_after_stop(3012.0),
                resource: 2,
                kind: quell_protocol::AmendmentKind::LateResult,
                text: "the MCP server files finished the call".into(),
                leftovers: Vec::new(),
            }],
            ..receipts::stopped_receipt()
        };
        (receipt, receipts::aborted_by_user())
    });
    let screen = scene.screen_text(80, 24);
    assert!(screen.contains("3 s later: the MCP server files finished the call"), "{screen}");
}
