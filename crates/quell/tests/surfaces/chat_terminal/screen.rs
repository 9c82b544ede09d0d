//! Window sizes, limited terminals, hostile text, paste.

use quell_testkit::pty::{PtySize, PtySnapshot};

use super::{CTRL_C, ChatFixture, DEFAULT_SIZE, ENTER, ESC, open_chat_with_env};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_may_change_its_size_while_a_run_streams() {
    let mut fixture = ChatFixture::start().await;
    let ten = ScriptedStream::new().text("one two three four five six seven eight nine ten ");
    fixture.model.script(ten.wait_for_gate("go").text("eleven"));
    fixture.send_until("count", "nine ten").await;
    for (rows, columns) in [(5, 20), (60, 200), (1, 1), (3, 10), (24, 80)] {
        fixture.chat.resize(PtySize { rows, columns });
        if rows >= 5 {
            fixture.chat.wait_until("a window that fits", |shown| shown.text().contains("ten")).await;
        }
    }
    fixture.model.open_gate("go");
    fixture.chat.wait_text("nine ten eleven").await;
    fixture.chat.resize(PtySize { rows: 5, columns: 20 });
    // The library that reads the keyboard may hold back keys that arrive together with a new size, until the next key.
    fixture.chat.wait_text("main · …").await;
    fixture.model.script(ScriptedStream::new().text("more").wait_for_gate("never"));
    fixture.send_until("again", "more").await;
    // Suspend the daemon, so that the screen during the stop can be checked.
    let still = fixture.daemon.suspend();
    fixture.type_until(ESC, "◆ stopping").await;
    drop(still);
    fixture.chat.resize(DEFAULT_SIZE);
    fixture.chat.wait_text("Execution paused").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poor_terminal_gets_ascii_and_no_colour() {
    let (model, daemon) = start_daemon("").await;
    let poor = [("LANG", "C"), ("NO_COLOR", "1")];
    let mut chat = open_chat_with_env(daemon.home(), &["--session", "s"], DEFAULT_SIZE, &poor);
    chat.wait_text("* live").await;
    model.script(ScriptedStream::new().text("- a\n- b\n").wait_for_gate("never"));
    chat.type_keys("hello\r");
    chat.wait_text("* a").await;
    chat.type_keys("/");
    chat.wait_text("> /stop").await;
    chat.type_keys(ESC);
    chat.type_keys(CTRL_C);
    chat.type_keys(ESC);
    let shown = chat.wait_text("# Execution paused").await;
    assert!(shown.text().is_ascii(), "{}", shown.text());
    assert!(!shown.has_color());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_screen_speaks_korean_where_the_person_does() {
    let (_model, daemon) = start_daemon("").await;
    let chat = open_chat_with_env(daemon.home(), &["--session", "s"], DEFAULT_SIZE, &[("LANG", "ko_KR.UTF-8")]);
    chat.wait_text("준비됨").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_text_cannot_rewrite_the_screen() {
    let mut fixture = ChatFixture::start().await;
    let hostile = "before\u{1b}[2J\u{1b}[H\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}after\r\u{8}\u{8}end";
    fixture.model.script(ScriptedResponse::tool_call("c1", "sh\u{1b}[2Jell", &json!({"command": hostile})));
    fixture.model.script(ScriptedResponse::text(hostile));
    let shown = fixture.send_until("attack", "before[2J").await.text();
    assert!(shown.contains("› attack") && shown.contains("before[2J[H]0;owned31mafter"), "{shown}");
    assert!(shown.contains("s · main") && shown.contains("● live"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paste_of_several_lines_waits_for_enter() {
    let mut fixture = ChatFixture::start().await;
    fixture.model.script(ScriptedResponse::text("Two lines, I see."));
    fixture.chat.type_keys("\x1b[200~one\rtwo\x1b[201~");
    let pasted = |shown: &PtySnapshot| shown.rows().windows(2).any(|rows| rows == ["› one", "  two"]);
    fixture.chat.wait_until("the pasted lines", pasted).await;
    fixture.chat.type_keys("\x1b\r");
    fixture.type_until("three\nfour", "  four").await;
    assert_eq!(fixture.model.request_count(), 0);
    fixture.type_until(ENTER, "Two lines, I see.").await;
    let request = fixture.model.request_at(0).wait_arrived().await;
    assert!(format!("{:?}", request.messages()).contains("one\\ntwo\\nthree\\nfour"), "{:?}", request.messages());
}

/// The kernel reports a key and a new window size at the same time; neither may hide the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_typed_while_the_window_changes_its_size_are_not_lost() {
    let mut fixture = ChatFixture::start().await;
    let mut typed = String::from("› ");
    for columns in (60..100).rev() {
        fixture.chat.resize(PtySize { rows: 24, columns });
        fixture.chat.type_keys("x");
        typed.push('x');
        fixture.chat.wait_text(&typed).await;
    }
}
