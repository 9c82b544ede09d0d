//! The screen: sizes, poor terminals, hostile text, paste.

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::Daemon;
use quell_testkit::model::{Behaviour, Stream};
use quell_testkit::pty::Size;

use super::{CLASSIC, ENTER, ESC, Table, chat_in, config};
use crate::cli::exe;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_may_change_its_size_while_a_run_streams() {
    let mut table = Table::set().await;
    table
        .model
        .script(Stream::new().text("one two three four five six seven eight nine ten ").wait_for("go").text("eleven"));
    table.say("count");
    table.chat.shows("nine ten").await;
    for (rows, columns) in [(5, 20), (60, 200), (1, 1), (3, 10), (24, 80)] {
        table.chat.resize(Size { rows, columns });
        if rows >= 5 {
            table.chat.until("a window that fits", |shown| shown.text().contains("ten")).await;
        }
    }
    table.model.open_gate("go");
    table.chat.shows("nine ten eleven").await;
    table.chat.resize(Size { rows: 5, columns: 20 });
    // The library that reads the keyboard may sit on keys that come in the same moment as a new size, until the next one.
    table.chat.shows("main · …").await;
    table.model.script(Stream::new().text("more").wait_for("never"));
    table.say("again");
    table.chat.shows("more").await;
    // The daemon stands still, so that what is seen while it stops can be looked at.
    let still = table.daemon.stand_still();
    table.chat.keys(ESC);
    table.chat.shows("◆ stopping").await;
    drop(still);
    table.chat.resize(CLASSIC);
    table.chat.shows("Execution paused").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poor_terminal_gets_ascii_and_no_colour() {
    let model = ScriptedModel::start().await;
    let daemon = Daemon::start(exe(), &config(&model, "")).await;
    let poor = [("LANG", "C"), ("NO_COLOR", "1")];
    let mut chat = chat_in(daemon.home(), &["--session", "s"], CLASSIC, &poor);
    chat.shows("* live").await;
    model.script(Stream::new().text("- a\n- b\n").wait_for("never"));
    chat.keys("hello");
    chat.keys(ENTER);
    chat.shows("* a").await;
    chat.keys("/");
    chat.shows("> /stop").await;
    chat.keys(ESC);
    chat.keys(super::CTRL_C);
    chat.keys(ESC);
    let shown = chat.shows("# Execution paused").await;
    assert!(shown.text().is_ascii(), "{}", shown.text());
    assert!(!shown.has_color());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_screen_speaks_korean_where_the_person_does() {
    let model = ScriptedModel::start().await;
    let daemon = Daemon::start(exe(), &config(&model, "")).await;
    let chat = chat_in(daemon.home(), &["--session", "s"], CLASSIC, &[("LANG", "ko_KR.UTF-8")]);
    chat.shows("준비됨").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_text_cannot_rewrite_the_screen() {
    let mut table = Table::set().await;
    let hostile = "before\u{1b}[2J\u{1b}[H\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}after\r\u{8}\u{8}end";
    table.model.script(Behaviour::tool_call("c1", "sh\u{1b}[2Jell", &serde_json::json!({"command": hostile})));
    table.model.script(Behaviour::text(hostile));
    table.say("attack");
    let shown = table.chat.shows("before[2J").await.text();
    assert!(shown.contains("› attack") && shown.contains("before[2J[H]0;owned31mafter"), "{shown}");
    assert!(shown.contains("s · main") && shown.contains("● live"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paste_of_several_lines_waits_for_enter() {
    let mut table = Table::set().await;
    table.model.script(Behaviour::text("Two lines, I see."));
    table.chat.keys("\x1b[200~one\rtwo\x1b[201~");
    table.chat.until("the pasted lines", |shown| shown.rows().windows(2).any(|rows| rows == ["› one", "  two"])).await;
    table.chat.keys("\x1b\r");
    table.chat.keys("three\nfour");
    table.chat.shows("  four").await;
    assert_eq!(table.model.request_count(), 0);
    table.chat.keys(ENTER);
    table.chat.shows("Two lines, I see.").await;
    let request = table.model.request(0).arrived().await;
    assert!(format!("{:?}", request.messages()).contains("one\\ntwo\\nthree\\nfour"), "{:?}", request.messages());
}
