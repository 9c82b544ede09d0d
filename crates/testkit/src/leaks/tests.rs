//! The leak checks detect every kind of leak.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use super::*;
use crate::WAIT_TIMEOUT;

/// A shell that runs lines from its input and ends with it.
struct TestShell {
    child: Child,
    input: Option<ChildStdin>,
}

impl TestShell {
    fn start(environment: &[(&str, &str)]) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the leak check needs a process to inspect")]
        let mut command = std::process::Command::new("sh");
        command.envs(environment.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        // While a shell is loaded it has extra files open; once it reads input, its descriptors are stable.
        let stdout = child.stdout.take();
        let mut shell = Self { child, input };
        shell.send_line("exec >/dev/null");
        stdout.unwrap().read_to_end(&mut Vec::new()).unwrap();
        shell
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn send_line(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for TestShell {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
#[should_panic(expected = "1 processes with QUELL_RUN_ID=still-there")]
async fn a_process_that_is_left_fails_the_check_with_its_name() {
    let _shell = TestShell::start(&[("QUELL_RUN_ID", "still-there")]);
    wait_no_process_with_env("QUELL_RUN_ID=still-there", Duration::from_millis(20)).await;
}

#[tokio::test]
#[should_panic(expected = "files, at most")]
async fn a_descriptor_that_is_left_fails_the_check() {
    let mut shell = TestShell::start(&[]);
    let (pid, before) = (shell.pid(), ResourceBaseline::capture(shell.pid()));
    let files = move || count_descriptors(pid).unwrap().files;
    let then = files();
    shell.send_line("exec 5</dev/null");
    wait_for_value("open files", then + 1, files).await;
    before.assert_restored(LeakAllowance::default(), Duration::from_millis(20)).await;
}

#[tokio::test]
#[should_panic(expected = "child ObservedProcess")]
async fn a_child_that_is_left_fails_the_check() {
    let mut shell = TestShell::start(&[]);
    let before = ResourceBaseline::capture(shell.pid());
    // Ends when the shell, which holds the other end of its input, is gone.
    shell.send_line("cat <&0 & read forever");
    let pid = shell.pid();
    wait_until(WAIT_TIMEOUT, move || if children_of(pid).is_empty() { Err("no child yet".into()) } else { Ok(()) })
        .await;
    before.assert_restored(LeakAllowance::default(), Duration::from_millis(20)).await;
}

#[tokio::test]
async fn tasks_of_the_runtime_are_counted() {
    let before = TaskBaseline::capture();
    let (release, held) = tokio::sync::oneshot::channel::<()>();
    #[expect(clippy::disallowed_methods, reason = "the leak check needs a task to count")]
    let task = tokio::spawn(held);
    let looked = before.clone();
    #[expect(clippy::disallowed_methods, reason = "the test checks its panic")]
    let complaint = tokio::spawn(async move { looked.assert_restored(Duration::from_millis(20)).await }).await;
    let complaint = complaint.unwrap_err().into_panic();
    assert!(complaint.downcast_ref::<String>().unwrap().contains("tasks alive, 0 before"));
    release.send(()).unwrap();
    task.await.unwrap().unwrap();
    before.assert_restored(WAIT_TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "not settled after 10ms: never content")]
async fn looking_ends_at_its_limit_in_real_time() {
    wait_until(Duration::from_millis(10), || Err("never content".into())).await;
}
