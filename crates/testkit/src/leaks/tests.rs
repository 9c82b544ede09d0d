//! The leak checks detect every kind of leak.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use super::*;
use crate::WAIT_TIMEOUT;
use crate::model::ScriptedModel;

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

    /// Waits until the shell's descriptors match.
    async fn wait_for_descriptors(&self, wanted: impl Fn(DescriptorCounts) -> bool + Send + 'static) {
        let pid = self.pid();
        wait_until(WAIT_TIMEOUT, move || {
            let now = count_descriptors(pid).map_err(|error| error.to_string())?;
            if wanted(now) { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
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
async fn processes_are_found_by_an_exact_entry_and_gone_when_reaped() {
    let entry = format!("QUELL_RUN_ID=leak-test-{}", std::process::id());
    let (name, value) = entry.split_once('=').unwrap();
    let shell = TestShell::start(&[(name, value)]);
    let found: Vec<u32> = processes_with_env(&entry).iter().map(|p| p.pid).collect();
    assert_eq!(found, [shell.pid()]);
    assert_eq!(processes_with_env(&entry[..entry.len() - 1]), []);
    assert_eq!(processes_with_marker(value).len(), 1);
    drop(shell);
    wait_no_process_with_env(&entry, WAIT_TIMEOUT).await;
    wait_no_process_with_marker(value, WAIT_TIMEOUT).await;
}

#[tokio::test]
#[should_panic(expected = "1 processes with QUELL_RUN_ID=still-there")]
async fn a_process_that_is_left_fails_the_check_with_its_name() {
    let _shell = TestShell::start(&[("QUELL_RUN_ID", "still-there")]);
    wait_no_process_with_env("QUELL_RUN_ID=still-there", Duration::from_millis(20)).await;
}

#[tokio::test]
async fn children_and_their_children_are_found() {
    let mut shell = TestShell::start(&[]);
    shell.send_line("(sleep 100 & sleep 100; :) & wait");
    let pid = shell.pid();
    wait_until(WAIT_TIMEOUT, move || {
        let (children, all) = (children_of(pid), descendants_of(pid));
        let sleeping = all.iter().filter(|p| p.command == "sleep 100").count();
        if (children.len(), all.len(), sleeping) == (1, 3, 2) { Ok(()) } else { Err(format!("{all:#?}")) }
    })
    .await;
    let parent = read_process(pid).unwrap();
    assert_eq!((parent.parent, parent.command.as_str()), (std::process::id(), "sh"));
    for descendant in descendants_of(pid) {
        let id = rustix::process::Pid::from_raw(i32::try_from(descendant.pid).unwrap()).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
    }
}

#[tokio::test]
async fn descriptors_are_counted_by_kind_and_a_baseline_is_returned_to() {
    let mut shell = TestShell::start(&[]);
    let before = ResourceBaseline::capture(shell.pid());
    let then = before.descriptors();
    assert!(then.pipes >= 1 && then.files >= 1 && then.total() >= 3, "{then:?}");
    shell.send_line("exec 5</dev/null 6</");
    shell.wait_for_descriptors(move |now| now == DescriptorCounts { files: then.files + 2, ..then }).await;
    let allowance = LeakAllowance { other_descriptors: 2, ..LeakAllowance::default() };
    before.assert_restored_with(allowance, Duration::ZERO).await;
    shell.send_line("exec 5<&- 6<&-");
    before.assert_restored(WAIT_TIMEOUT).await;
    assert!(rss_bytes(shell.pid()).unwrap() > 100_000 && threads_of(shell.pid()) == Some(1));
}

#[tokio::test]
#[should_panic(expected = "files, at most")]
async fn a_descriptor_that_is_left_fails_the_check() {
    let mut shell = TestShell::start(&[]);
    let before = ResourceBaseline::capture(shell.pid());
    let then = before.descriptors();
    shell.send_line("exec 5</dev/null");
    shell.wait_for_descriptors(move |now| now.files == then.files + 1).await;
    before.assert_restored(Duration::from_millis(20)).await;
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
    before.assert_restored(Duration::from_millis(20)).await;
}

#[tokio::test]
async fn sockets_are_found_with_both_addresses() {
    let model = ScriptedModel::start().await;
    let listening = |row: &TcpSocketInfo| row.local == model.address() && row.state == TcpState::Listening;
    assert!(sockets_of(std::process::id()).unwrap().iter().any(listening));
    let stream = tokio::net::TcpStream::connect(model.address()).await.unwrap();
    let local = stream.local_addr().unwrap();
    let held =
        |row: &TcpSocketInfo| (row.local, row.remote, row.state) == (local, model.address(), TcpState::Established);
    assert!(sockets_of(std::process::id()).unwrap().iter().any(held));
    drop(stream);
    assert!(!sockets_of(std::process::id()).unwrap().iter().any(held));
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
