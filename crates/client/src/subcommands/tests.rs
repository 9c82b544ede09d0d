//! The subcommands against scripted daemons, from command line arguments to exit code.

mod archive;
mod channels;
mod cluster;
mod memory;
mod send;
mod show_and_set;
mod stop;

use clap::Parser as _;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::term::{CliOutputStreamKind, Interruption};
use crate::test_support::daemon::{ScriptedDaemon, ScriptedDaemonReply, install_tls_provider};
use crate::test_support::{CapturedStreams, TestIo};

#[derive(Debug, clap::Parser)]
struct SubcommandTestCli {
    #[command(flatten)]
    target: DaemonTarget,
    #[command(subcommand)]
    verb: ClientSubcommand,
}

fn parse_args(words: &[&str]) -> Result<SubcommandTestCli, clap::Error> {
    SubcommandTestCli::try_parse_from(["quell"].iter().chain(words))
}

/// Runs a subcommand as the binary does, with a short reconnect policy.
async fn run_with_io(daemon: &ScriptedDaemon, words: &[&str], io: &mut CommandIo) -> Exit {
    let verb = parse_args(words).unwrap().verb;
    let outcome = dispatch_subcommand(verb, &daemon.client(), io).await;
    finish_subcommand(outcome, io)
}

/// Runs a subcommand with its output in a pipe.
async fn run_piped(daemon: &ScriptedDaemon, words: &[&str]) -> (Exit, CapturedStreams) {
    let mut test_io = TestIo::new(CliOutputStreamKind::Pipe);
    let exit = run_with_io(daemon, words, &mut test_io.io).await;
    (exit, test_io.captured)
}

/// Runs a subcommand that succeeds, with its output in a pipe.
async fn run_done(daemon: &ScriptedDaemon, words: &[&str]) -> CapturedStreams {
    let (exit, seen) = run_piped(daemon, words).await;
    assert_eq!(exit, Exit::Done, "{}", seen.interleaved());
    seen
}

#[test]
fn the_arguments_are_sound_and_help_has_examples() {
    use clap::CommandFactory as _;
    let command = SubcommandTestCli::command();
    command.clone().debug_assert();
    for verb in command.get_subcommands() {
        let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        let has_example = help.contains("Examples:") && help.contains(&format!("quell {}", verb.get_name()));
        assert!(has_example || verb.get_name() == "help", "{}", verb.get_name());
    }
}

#[test]
fn arguments_that_contradict_are_refused() {
    for words in [
        vec!["stop"],
        vec!["stop", "r1", "--all"],
        vec!["stop", "r1", "--session", "s"],
        vec!["stop", "r1", "--keep-queued"],
        vec!["stop", "--session", "s", "--hold"],
        vec!["stop", "not/an/id"],
        vec!["send"],
        vec!["send", "--timeout", "0", "x"],
        vec!["send", "--timeout", "soon", "x"],
        vec!["send", "--session", "", "x"],
        vec!["token"],
    ] {
        assert!(parse_args(&words).is_err(), "{words:?}");
    }
    for words in [vec!["runs"], vec!["sessions"], vec!["hold"], vec!["runs", "list", "--json"], vec!["runs", "--json"]]
    {
        assert!(parse_args(&words).is_ok(), "{words:?}");
    }
}

#[tokio::test]
async fn no_daemon_is_exit_4_and_says_what_was_tried() {
    install_tls_provider();
    let addr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("address"), addr.to_string()).unwrap();
    std::fs::write(dir.path().join("token"), "t\n").unwrap();
    let empty = tempfile::tempdir().unwrap();
    for (dir, says) in [(&dir, addr.to_string()), (&empty, "address".to_owned())] {
        let target = DaemonTarget { data_dir: Some(dir.path().to_owned()), ..DaemonTarget::default() };
        for words in [&["send", "hi"][..], &["stop", "--all"], &["runs"], &["hold", "status"]] {
            let TestIo { io, captured: seen, interruptions: _interruptions } = TestIo::new(CliOutputStreamKind::Pipe);
            let exit = run(parse_args(words).unwrap().verb, &target, io).await;
            assert_eq!((exit, exit.code(), seen.out()), (Exit::NoDaemon, 4, String::new()), "{words:?}");
            let said = seen.err();
            assert!(said.starts_with("error: no daemon answers") && said.contains(&says), "{said}");
            assert!(said.contains("quell serve"), "{said}");
        }
    }
}

#[tokio::test]
async fn a_refused_token_fails_every_verb_alike() {
    let daemon = ScriptedDaemon::start(|_| {
        ScriptedDaemonReply::Problem(quell_protocol::Problem::new(
            quell_protocol::ErrorCode::Unauthorized,
            "unknown token",
        ))
    });
    for words in [vec!["send", "x"], vec!["runs"], vec!["stop", "--all"], vec!["hold"], vec!["token", "list"]] {
        let (exit, seen) = run_piped(&daemon, &words).await;
        assert_eq!((exit.code(), seen.out()), (1, String::new()), "{words:?}");
        assert!(seen.err().contains("was refused: unknown token"), "{words:?}: {}", seen.err());
    }
}

#[tokio::test]
async fn a_reader_that_has_seen_enough_is_no_failure_worth_a_word() {
    struct ClosedPipe;
    impl io::Write for ClosedPipe {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let daemon = ScriptedDaemon::with_replies(vec![("GET /api/hold", json!({"held": false}))]);
    let mut test_io = TestIo::new(CliOutputStreamKind::Pipe);
    let (_, seen) = crate::test_support::capturing_output(CliOutputStreamKind::Pipe);
    let err = crate::test_support::capturing_stderr(&seen);
    test_io.io.output =
        crate::term::CliOutput::new(crate::term::CliOutputStream::new(ClosedPipe, CliOutputStreamKind::Pipe), err);
    let exit = run_with_io(&daemon, &["hold", "status"], &mut test_io.io).await;
    assert_eq!((exit, seen.err()), (Exit::Failed, String::new()));
}
