//! Commands that are started and go on: they read from a pipe, and end when they are told or when their scope is.

use quell_engine::proc::{Isolate, ProcessEnd, ProcessHow, ProcessStop};
use quell_engine::scope::StopLevel;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::bench::{Bench, Watched};

/// Echoes lines until its input ends.
const ECHO: &str = "while read -r line; do echo \"got $line\"; done; echo over >&2";

async fn converse(bench: &Bench) -> ProcessEnd {
    let mut running = bench.wardens.start(&bench.spec(ECHO), &bench.scope).unwrap();
    let (mut input, output) = (running.take_input().unwrap(), running.take_stdout().unwrap());
    let mut lines = BufReader::new(output).lines();
    for word in ["one", "two"] {
        input.write_all(format!("{word}\n").as_bytes()).await.unwrap();
        assert_eq!(lines.next_line().await.unwrap(), Some(format!("got {word}")));
    }
    drop(input);
    let end = running.collect(&mut Watched::new().0).await.unwrap();
    assert_eq!(lines.next_line().await.unwrap(), None);
    bench.assert_gone();
    end
}

#[tokio::test]
async fn a_command_reads_what_it_is_given_and_sees_the_end_of_it() {
    let end = converse(&Bench::new().await).await;
    assert_eq!((end.code, end.why, end.how), (Some(0), ProcessStop::Own, ProcessHow::Exited));
    assert_eq!(end.output.text(), "over\n");
}

#[tokio::test]
async fn also_in_a_namespace_of_its_own() {
    let bench = Bench::isolating().await;
    assert_eq!(bench.isolate, Isolate::Pid);
    assert_eq!(converse(&bench).await.code, Some(0));
}

#[tokio::test]
async fn the_leash_and_the_scope_end_it_with_its_descendants() {
    let bench = Bench::new().await;
    for by_scope in [false, true] {
        let bench = bench.again();
        let mut running =
            bench.wardens.start(&bench.spec("setsid sleep 1000 & echo ready; cat"), &bench.scope).unwrap();
        let mut output = running.take_stdout().unwrap();
        let mut ready = [0; 6];
        output.read_exact(&mut ready).await.unwrap();
        if by_scope {
            bench.tell(StopLevel::Gentle);
        } else {
            running.leash().end(StopLevel::Gentle);
        }
        let end = running.collect(&mut Watched::new().0).await.unwrap();
        assert_eq!((end.why, end.how), (ProcessStop::Stopped, ProcessHow::Term));
        assert!(end.swept > 0, "the child in a session of its own was ended too");
        bench.scope.close().await;
        bench.assert_gone();
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_executed_says_so_at_its_end() {
    let bench = Bench::new().await;
    let mut spec = bench.spec("");
    spec.argv = vec!["no-such-program-here".into()];
    let running = bench.wardens.start(&spec, &bench.scope).unwrap();
    let error = running.collect(&mut Watched::new().0).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot execute no-such-program-here");
}
