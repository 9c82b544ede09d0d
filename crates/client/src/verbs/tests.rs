//! The verbs against scripted daemons, from the words of the command line to the exit code.

mod archive;
mod channels;
mod look;
mod memory;
mod send;
mod stop;

use clap::Parser as _;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::fake::daemon::{Daemon, Reply, provide_tls};
use crate::fake::{Desk, Seen};
use crate::term::PaneKind;

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    verb: Verb,
}

fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(["quell"].iter().chain(words))
}

/// Runs a verb as the roof would, with a link that loses its patience fast.
async fn go(daemon: &Daemon, words: &[&str], io: &mut Io) -> Exit {
    let verb = parse(words).unwrap().verb;
    let outcome = perform(verb, &daemon.link(), io).await;
    conclude(outcome, io)
}

/// Runs a verb in a pipe.
async fn piped(daemon: &Daemon, words: &[&str]) -> (Exit, Seen) {
    let mut desk = Desk::new(PaneKind::Pipe);
    let exit = go(daemon, words, &mut desk.io).await;
    (exit, desk.seen)
}

#[test]
fn the_arguments_are_sound_and_help_has_examples() {
    use clap::CommandFactory as _;
    let command = Cli::command();
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
        assert!(parse(&words).is_err(), "{words:?}");
    }
    for words in [vec!["runs"], vec!["sessions"], vec!["hold"], vec!["runs", "list", "--json"], vec!["runs", "--json"]]
    {
        assert!(parse(&words).is_ok(), "{words:?}");
    }
}

#[tokio::test]
async fn no_daemon_is_exit_4_and_says_what_was_tried() {
    provide_tls();
    let addr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("address"), addr.to_string()).unwrap();
    std::fs::write(dir.path().join("token"), "t\n").unwrap();
    let empty = tempfile::tempdir().unwrap();
    for (dir, says) in [(&dir, addr.to_string()), (&empty, "address".to_owned())] {
        let target = Target { data_dir: Some(dir.path().to_owned()), ..Target::default() };
        let Desk { io, seen, ctrl_c: _ctrl_c } = Desk::new(PaneKind::Pipe);
        let exit = run(parse(&["send", "hi"]).unwrap().verb, &target, io).await;
        assert_eq!((exit, exit.code(), seen.out()), (Exit::NoDaemon, 4, String::new()));
        let said = seen.err();
        assert!(said.starts_with("error: no daemon answers") && said.contains(&says), "{said}");
        assert!(said.contains("quell serve"), "{said}");
    }
}

#[tokio::test]
async fn a_refused_token_fails_every_verb_alike() {
    let daemon = Daemon::start(|_| {
        Reply::Problem(quell_protocol::Problem::new(quell_protocol::ErrorCode::Unauthorized, "unknown token"))
    })
    .await;
    for words in [vec!["send", "x"], vec!["runs"], vec!["stop", "--all"], vec!["hold"], vec!["token", "list"]] {
        let (exit, seen) = piped(&daemon, &words).await;
        assert_eq!((exit.code(), seen.out()), (1, String::new()), "{words:?}");
        assert!(seen.err().contains("was refused: unknown token"), "{words:?}: {}", seen.err());
    }
}

#[tokio::test]
async fn a_reader_that_has_seen_enough_is_no_failure_worth_a_word() {
    struct Closed;
    impl io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let daemon = Daemon::of(vec![("GET /api/hold", json!({"held": false}))]).await;
    let mut desk = Desk::new(PaneKind::Pipe);
    let (_, seen) = crate::fake::shown(PaneKind::Pipe);
    let err = crate::fake::err_pane(&seen);
    desk.io.screen = crate::term::Screen::new(crate::term::Pane::new(Closed, PaneKind::Pipe), err);
    let exit = go(&daemon, &["hold", "status"], &mut desk.io).await;
    assert_eq!((exit, seen.err()), (Exit::Failed, String::new()));
}
