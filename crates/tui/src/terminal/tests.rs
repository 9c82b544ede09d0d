//! Panics and signals while the chat has the terminal: this test program starts itself in a pseudo-terminal.

use std::time::Duration;

use quell_client::term::{ColorMode, Glyphs, Language};
use quell_client::test_support::daemon::ScriptedDaemon;
use quell_testkit::pty::{Pty, PtySize};
use rustix::process::Signal;

use super::*;
use crate::event_loop::{LoopExit, run_event_loop};
use crate::texts::Texts;

/// Run by a test below in a pseudo-terminal.
#[tokio::test]
#[ignore = "full: does nothing unless a test below starts it on a terminal"]
async fn panics_with_the_terminal_in_its_hands() {
    if !is_on_a_terminal() {
        return;
    }
    let _taken = TerminalGuard::acquire().unwrap();
    panic!("a panic on a taken terminal");
}

/// Run by a test below in a pseudo-terminal.
#[tokio::test]
#[ignore = "full: does nothing unless a test below starts it on a terminal"]
async fn a_task_panics_beside_the_chat() {
    if !is_on_a_terminal() {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "a detached task whose panic the runtime catches")]
    let task = tokio::spawn(async {
        while !TERMINAL_HELD.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        panic!("a panic in a task");
    });
    let left = chat_to_its_end().await;
    assert!(left.unwrap_err().to_string().contains("panicked"));
    assert!(task.await.is_err());
}

/// Run by a test below in a pseudo-terminal.
#[tokio::test]
#[ignore = "full: does nothing unless a test below starts it on a terminal"]
async fn a_chat_until_a_signal_ends_it() {
    if is_on_a_terminal() {
        assert_eq!(chat_to_its_end().await.unwrap(), LoopExit::Terminated);
    }
}

/// Set where a test has started this program on a terminal.
const TERMINAL_VARIABLE: &str = "QUELL_TEST_TERMINAL";

fn is_on_a_terminal() -> bool {
    std::env::var_os(TERMINAL_VARIABLE).is_some()
}

async fn chat_to_its_end() -> io::Result<LoopExit> {
    let daemon = ScriptedDaemon::with_replies(vec![]);
    let mut names = crate::new_id_generator();
    let session = names.next_session_key().unwrap();
    let chat = ChatState::new(Texts(Language::English), names, session, None);
    let look = TerminalCapabilities { color: ColorMode::Never, glyphs: Glyphs::Unicode };
    run_event_loop(chat, daemon.client(), look).await.1
}

fn on_a_terminal(test: &str) -> Pty {
    #[expect(clippy::disallowed_methods, reason = "the test starts itself in a pseudo-terminal")]
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("terminal::tests::{test}"), "--ignored", "--nocapture"]);
    command.env("RUST_BACKTRACE", "0").env(TERMINAL_VARIABLE, "1");
    Pty::start(&command, PtySize { rows: 24, columns: 100 })
}

/// Polls `is_so`: terminal modes change without an event.
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
    assert!(!pty.wait_exit().await.success());
    let shown = pty.snapshot();
    assert!(shown.text().contains("a panic on a taken terminal"), "{}", shown.text());
    assert!(pty.is_restored());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_task_ends_the_chat_and_is_not_painted_over() {
    let mut pty = on_a_terminal("a_task_panics_beside_the_chat");
    let status = pty.wait_exit().await;
    let shown = pty.snapshot();
    assert!(status.success() && shown.text().contains("a panic in a task"), "{}", shown.text());
    assert!(pty.is_restored());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_halted_chat_gives_the_terminal_back_and_takes_it_again() {
    let mut pty = on_a_terminal("a_chat_until_a_signal_ends_it");
    pty.wait_text("Enter send").await;
    pty.signal(Signal::TSTP);
    becomes("given back", || pty.is_restored()).await;
    // The signal may arrive before the program has stopped and would then resume nothing, so it is sent repeatedly.
    becomes("taken again", || {
        pty.signal(Signal::CONT);
        pty.snapshot().is_alternate() && !pty.is_cooked()
    })
    .await;
    pty.wait_text("Enter send").await;
    pty.signal(Signal::QUIT);
    assert!(pty.wait_exit().await.success(), "{}", pty.snapshot().text());
    assert!(pty.is_restored());
}

#[test]
fn a_terminal_that_is_not_in_our_hands_is_not_given_back() {
    // No other test of this process takes the terminal: those that do run in a process of their own.
    assert!(!TERMINAL_HELD.load(Ordering::SeqCst));
    let mut held = Vec::new();
    restore_terminal(&AtomicBool::new(true), &mut held);
    assert!(!held.is_empty());
    let (once, mut out) = (AtomicBool::new(true), Vec::new());
    restore_terminal(&once, &mut out);
    restore_terminal(&once, &mut out);
    assert_eq!(out, held);
}
