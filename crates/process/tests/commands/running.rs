//! Commands in the background: they read from a pipe, and end by themselves, by their stop handle or with their scope.

use quell_process::{Isolate, ProcessEnd, ProcessEndMethod, ProcessEndReason};
use quell_scope::StopLevel;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::fixture::{CommandFixture, WatchedOutput};

/// Echoes lines until end of file.
const ECHO: &str = "while read -r line; do echo \"got $line\"; done; echo over >&2";

async fn echo_two_lines(fixture: &CommandFixture) -> ProcessEnd {
    let mut running = fixture.wardens.start(&fixture.spec(ECHO), &fixture.scope).unwrap();
    let (mut input, output) = (running.take_input().unwrap(), running.take_stdout().unwrap());
    let mut lines = BufReader::new(output).lines();
    for word in ["one", "two"] {
        input.write_all(format!("{word}\n").as_bytes()).await.unwrap();
        assert_eq!(lines.next_line().await.unwrap(), Some(format!("got {word}")));
    }
    drop(input);
    let end = running.collect(&mut WatchedOutput::new().0).await.unwrap();
    assert_eq!(lines.next_line().await.unwrap(), None);
    fixture.assert_gone();
    end
}

#[tokio::test]
async fn a_command_reads_what_it_is_given_and_sees_the_end_of_it() {
    let end = echo_two_lines(&CommandFixture::new().await).await;
    assert_eq!((end.code, end.reason, end.how), (Some(0), ProcessEndReason::ByItself, ProcessEndMethod::Exited));
    assert_eq!(end.output.text(), "over\n");
}

#[tokio::test]
async fn also_in_a_namespace_of_its_own() {
    let fixture = CommandFixture::isolating().await;
    assert_eq!(fixture.isolate, Isolate::Pid);
    assert_eq!(echo_two_lines(&fixture).await.code, Some(0));
}

#[tokio::test]
async fn the_leash_and_the_scope_end_it_with_its_descendants() {
    let fixture = CommandFixture::new().await;
    for by_scope in [false, true] {
        let fixture = fixture.with_new_scope();
        let mut running =
            fixture.wardens.start(&fixture.spec("setsid sleep 1000 & echo ready; cat"), &fixture.scope).unwrap();
        let mut output = running.take_stdout().unwrap();
        let mut ready = [0; 6];
        output.read_exact(&mut ready).await.unwrap();
        if by_scope {
            fixture.scope.stop(StopLevel::Gentle);
        } else {
            running.stop_handle().send_stop(StopLevel::Gentle);
        }
        let end = running.collect(&mut WatchedOutput::new().0).await.unwrap();
        assert_eq!((end.reason, end.how), (ProcessEndReason::Stopped, ProcessEndMethod::Term));
        assert!(end.swept > 0, "the child in a session of its own was ended too");
        fixture.scope.close().await;
        fixture.assert_gone();
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_executed_says_so_at_its_end() {
    let fixture = CommandFixture::new().await;
    let mut spec = fixture.spec("");
    spec.argv = vec!["no-such-program-here".into()];
    let running = fixture.wardens.start(&spec, &fixture.scope).unwrap();
    let error = running.collect(&mut WatchedOutput::new().0).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot execute no-such-program-here");
}

/// The list is what the system shows, also of what has left the command's session.
#[tokio::test]
async fn all_its_living_processes_are_listed() {
    for isolate in [Isolate::None, Isolate::Auto] {
        let fixture = CommandFixture::with_isolation(isolate).await;
        let script = "setsid sleep 1000 & (sleep 1001 &) ; echo ready; read -r line; kill $!; wait; echo less; cat";
        let mut running = fixture.wardens.start(&fixture.spec(script), &fixture.scope).unwrap();
        let processes = running.processes();
        let (mut input, output) = (running.take_input().unwrap(), running.take_stdout().unwrap());
        let mut lines = BufReader::new(output).lines();
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("ready"));
        let listed = processes.list();
        assert_eq!((listed.len(), listed[0].name.as_str()), (3, "sh"), "{isolate:?}: {listed:?}");
        input.write_all(b"\n").await.unwrap();
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("less"));
        let later = processes.list();
        assert_eq!(later.iter().filter(|process| listed.iter().any(|known| known.is_same(process))).count(), 2);
        running.stop_handle().send_stop(StopLevel::Forced);
        running.collect(&mut WatchedOutput::new().0).await.unwrap();
        assert_eq!(processes.list(), []);
    }
}
