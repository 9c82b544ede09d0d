//! A panic on a terminal that is taken: this test program starts itself on one.

use quell_testkit::pty::{Pty, Size};

use super::*;

/// Run by the test below, on a terminal of its own.
#[tokio::test]
#[ignore = "panics on purpose, and needs a terminal"]
async fn panics_with_the_terminal_in_its_hands() {
    let _taken = Taken::take().unwrap();
    panic!("a panic on a taken terminal");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_gives_the_terminal_back_and_can_be_read() {
    #[expect(clippy::disallowed_methods, reason = "the test starts itself on a terminal")]
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "chat::terminal::tests::panics_with_the_terminal_in_its_hands",
        "--ignored",
        "--nocapture",
    ]);
    command.env("RUST_BACKTRACE", "0");
    let mut pty = Pty::start(&command, Size { rows: 24, columns: 100 });
    assert!(!pty.ended().await.success());
    let shown = pty.now();
    assert!(shown.text().contains("a panic on a taken terminal"), "{}", shown.text());
    assert!(pty.is_cooked() && !shown.is_alternate() && !shown.hides_cursor() && !shown.brackets_pastes());
}
