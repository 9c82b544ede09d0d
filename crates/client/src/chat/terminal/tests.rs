//! Panics and signals on a terminal that is taken: this test program starts itself on one.

use std::time::Duration;

use quell_testkit::pty::{Pty, Size};
use rustix::process::Signal;

use super::super::run::{Left, run};
use super::super::texts::Texts;
use super::*;
use crate::fake::daemon::Daemon;
use crate::term::{Color, Glyphs, Language};

/// Run by a test below, on a terminal of its own.
#[tokio::test]
#[ignore = "panics on purpose, and needs a terminal"]
async fn panics_with_the_terminal_in_its_hands() {
    let _taken = Taken::take().unwrap();
    panic!("a panic on a taken terminal");
}

/// Run by a test below, on a terminal of its own.
#[tokio::test]
#[ignore = "panics on purpose, and needs a terminal"]
async fn a_task_panics_beside_the_chat() {
    #[expect(clippy::disallowed_methods, reason = "a task whose panic the runtime catches")]
    let task = tokio::spawn(async {
        while !HELD.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        panic!("a panic in a task");
    });
    let left = chat_to_its_end().await;
    assert!(left.unwrap_err().to_string().contains("panicked"));
    assert!(task.await.is_err());
}

/// Run by a test below, on a terminal of its own.
#[tokio::test]
#[ignore = "needs a terminal and somebody who ends it"]
async fn a_chat_until_a_signal_ends_it() {
    assert_eq!(chat_to_its_end().await.unwrap(), Left::Ended);
}

async fn chat_to_its_end() -> io::Result<Left> {
    let daemon = Daemon::of(vec![]).await;
    let mut names = super::super::names();
    let session = names.session().unwrap();
    let chat = Chat::new(Texts(Language::English), names, session, None);
    let look = Look { color: Color::Never, glyphs: Glyphs::Unicode };
    run(chat, daemon.link(), look).await.1
}

fn on_a_terminal(test: &str) -> Pty {
    #[expect(clippy::disallowed_methods, reason = "the test starts itself on a terminal")]
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("chat::terminal::tests::{test}"), "--ignored", "--nocapture"]);
    command.env("RUST_BACKTRACE", "0");
    Pty::start(&command, Size { rows: 24, columns: 100 })
}

fn is_given_back(pty: &Pty) -> bool {
    let shown = pty.now();
    pty.is_cooked() && !shown.is_alternate() && !shown.hides_cursor() && !shown.brackets_pastes()
}

/// Modes of a terminal change without an event: they are looked at again and again.
async fn becomes(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(20));
    let look = async {
        while !is_so() {
            looks.tick().await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), look).await.is_ok(), "never: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_gives_the_terminal_back_and_can_be_read() {
    let mut pty = on_a_terminal("panics_with_the_terminal_in_its_hands");
    assert!(!pty.ended().await.success());
    let shown = pty.now();
    assert!(shown.text().contains("a panic on a taken terminal"), "{}", shown.text());
    assert!(is_given_back(&pty));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_task_ends_the_chat_and_is_not_painted_over() {
    let mut pty = on_a_terminal("a_task_panics_beside_the_chat");
    let status = pty.ended().await;
    let shown = pty.now();
    assert!(status.success() && shown.text().contains("a panic in a task"), "{}", shown.text());
    assert!(is_given_back(&pty));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_halted_chat_gives_the_terminal_back_and_takes_it_again() {
    let mut pty = on_a_terminal("a_chat_until_a_signal_ends_it");
    pty.shows("Enter send").await;
    pty.signal(Signal::TSTP);
    becomes("given back", || is_given_back(&pty)).await;
    // The signal may come before the program has halted, and would then continue nothing: it is sent until it did.
    becomes("taken again", || {
        pty.signal(Signal::CONT);
        pty.now().is_alternate() && !pty.is_cooked()
    })
    .await;
    pty.shows("Enter send").await;
    pty.signal(Signal::QUIT);
    assert!(pty.ended().await.success(), "{}", pty.now().text());
    assert!(is_given_back(&pty));
}

#[test]
fn a_terminal_that_is_not_in_our_hands_is_not_given_back() {
    // No other test of this program takes it: those that do run in a program of their own.
    assert!(!HELD.load(Ordering::SeqCst));
    let mut held = Vec::new();
    undo(&AtomicBool::new(true), &mut held);
    assert!(!held.is_empty());
    let (once, mut out) = (AtomicBool::new(true), Vec::new());
    undo(&once, &mut out);
    undo(&once, &mut out);
    assert_eq!(out, held);
}
