//! The leak check sees what it is meant to see.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use super::*;
use crate::model::ScriptedModel;

const LIMIT: Duration = Duration::from_secs(20);

/// A shell that does what it is told line by line, and ends with its input.
struct Shell {
    child: Child,
    input: Option<ChildStdin>,
}

impl Shell {
    fn start(environment: &[(&str, &str)]) -> Self {
        #[expect(clippy::disallowed_methods, reason = "the leak check needs a process to look at")]
        let mut command = std::process::Command::new("sh");
        command.envs(environment.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        // A shell that is being loaded has files open that it will not have; once it reads, it is as it stays.
        let stdout = child.stdout.take();
        let mut shell = Self { child, input };
        shell.tell("exec >/dev/null");
        stdout.unwrap().read_to_end(&mut Vec::new()).unwrap();
        shell
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits until the shell's descriptors are so.
    async fn descriptors(&self, wanted: impl Fn(Descriptors) -> bool + Send + 'static) {
        let pid = self.pid();
        settled(LIMIT, move || {
            let now = descriptors_of(pid).map_err(|error| error.to_string())?;
            if wanted(now) { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
    }
}

impl Drop for Shell {
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
    let shell = Shell::start(&[(name, value)]);
    let found: Vec<u32> = with_environment(&entry).iter().map(|p| p.pid).collect();
    assert_eq!(found, [shell.pid()]);
    assert_eq!(with_environment(&entry[..entry.len() - 1]), []);
    assert_eq!(marked(value).len(), 1);
    drop(shell);
    no_process_with(&entry, LIMIT).await;
    no_process_marked(value, LIMIT).await;
}

#[tokio::test]
#[should_panic(expected = "1 processes with QUELL_RUN_ID=still-there")]
async fn a_process_that_is_left_fails_the_check_with_its_name() {
    let _shell = Shell::start(&[("QUELL_RUN_ID", "still-there")]);
    no_process_with("QUELL_RUN_ID=still-there", Duration::from_millis(20)).await;
}

#[tokio::test]
async fn children_and_their_children_are_found() {
    let mut shell = Shell::start(&[]);
    shell.tell("(sleep 100 & sleep 100; :) & wait");
    let pid = shell.pid();
    settled(LIMIT, move || {
        let (children, all) = (children_of(pid), descendants_of(pid));
        let sleeping = all.iter().filter(|p| p.command == "sleep 100").count();
        if (children.len(), all.len(), sleeping) == (1, 3, 2) { Ok(()) } else { Err(format!("{all:#?}")) }
    })
    .await;
    let parent = process(pid).unwrap();
    assert_eq!((parent.parent, parent.command.as_str()), (std::process::id(), "sh"));
    for descendant in descendants_of(pid) {
        let id = rustix::process::Pid::from_raw(i32::try_from(descendant.pid).unwrap()).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
    }
}

#[tokio::test]
async fn descriptors_are_counted_by_kind_and_a_baseline_is_returned_to() {
    let mut shell = Shell::start(&[]);
    let before = Baseline::of(shell.pid());
    let then = before.descriptors();
    assert!(then.pipes >= 1 && then.files >= 1 && then.total() >= 3, "{then:?}");
    shell.tell("exec 5</dev/null 6</");
    shell.descriptors(move |now| now == Descriptors { files: then.files + 2, ..then }).await;
    let allowance = Allowance { others: 2, ..Allowance::default() };
    before.assert_back_but_for(allowance, Duration::ZERO).await;
    shell.tell("exec 5<&- 6<&-");
    before.assert_back(LIMIT).await;
    assert!(rss_bytes(shell.pid()).unwrap() > 100_000 && threads_of(shell.pid()) == Some(1));
}

#[tokio::test]
#[should_panic(expected = "files, at most")]
async fn a_descriptor_that_is_left_fails_the_check() {
    let mut shell = Shell::start(&[]);
    let before = Baseline::of(shell.pid());
    let then = before.descriptors();
    shell.tell("exec 5</dev/null");
    shell.descriptors(move |now| now.files == then.files + 1).await;
    before.assert_back(Duration::from_millis(20)).await;
}

#[tokio::test]
#[should_panic(expected = "child Process")]
async fn a_child_that_is_left_fails_the_check() {
    let mut shell = Shell::start(&[]);
    let before = Baseline::of(shell.pid());
    // Ends by itself when the shell, which holds the other end of its input, is gone.
    shell.tell("cat <&0 & read forever");
    let pid = shell.pid();
    settled(LIMIT, move || if children_of(pid).is_empty() { Err("no child yet".into()) } else { Ok(()) }).await;
    before.assert_back(Duration::from_millis(20)).await;
}

#[tokio::test]
async fn sockets_are_found_with_both_addresses() {
    let model = ScriptedModel::start().await;
    let listening = |row: &SocketRow| row.local == model.address() && row.state == TcpState::Listening;
    assert!(sockets_of(std::process::id()).unwrap().iter().any(listening));
    let stream = tokio::net::TcpStream::connect(model.address()).await.unwrap();
    let local = stream.local_addr().unwrap();
    let held = |row: &SocketRow| (row.local, row.remote, row.state) == (local, model.address(), TcpState::Established);
    assert!(sockets_of(std::process::id()).unwrap().iter().any(held));
    drop(stream);
    assert!(!sockets_of(std::process::id()).unwrap().iter().any(held));
}

#[tokio::test]
async fn tasks_of_the_runtime_are_counted() {
    let before = Tasks::now();
    let (release, held) = tokio::sync::oneshot::channel::<()>();
    #[expect(clippy::disallowed_methods, reason = "the leak check needs a task to count")]
    let task = tokio::spawn(held);
    let looked = before.clone();
    #[expect(clippy::disallowed_methods, reason = "its panic is the proof")]
    let complaint = tokio::spawn(async move { looked.assert_back(Duration::from_millis(20)).await }).await;
    let complaint = complaint.unwrap_err().into_panic();
    assert!(complaint.downcast_ref::<String>().unwrap().contains("tasks alive, 0 before"));
    release.send(()).unwrap();
    task.await.unwrap().unwrap();
    before.assert_back(LIMIT).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "not settled after 10ms: never content")]
async fn looking_ends_at_its_limit_in_real_time() {
    settled(Duration::from_millis(10), || Err("never content".into())).await;
}
