//! `quell sessions export` and `import`: unchanged bytes, progress on a terminal, and an error for a broken transfer.

use std::sync::Mutex;

use tokio::sync::mpsc;

use super::*;
use crate::test_support::daemon::{ScriptedStreamPiece, stream_of};

/// A daemon that exports the session `s` in these pieces.
fn exporting(pieces: Vec<ScriptedStreamPiece>) -> ScriptedDaemon {
    streaming(stream_of(pieces))
}

fn streaming(stream: mpsc::Receiver<ScriptedStreamPiece>) -> ScriptedDaemon {
    let stream = Mutex::new(Some(stream));
    ScriptedDaemon::start(move |asked| {
        assert_eq!(asked.route, "GET /api/sessions/s/export");
        stream.lock().unwrap().take().map_or(ScriptedDaemonReply::Silence, ScriptedDaemonReply::Stream)
    })
}

fn text(text: &str) -> ScriptedStreamPiece {
    ScriptedStreamPiece::Text(text.to_owned())
}

#[tokio::test]
async fn an_export_comes_out_as_it_came_in_wherever_its_pieces_end() {
    let pieces = vec![
        text("{\"quell\":\"session\"}\n{\"kind\""),
        text(":\"turn\",\"turn\":\"ü\u{1b}[2J"),
        text("\"}\n{\"last\":1}"),
    ];
    let daemon = exporting(pieces);
    let seen = run_done(&daemon, &["sessions", "export", "s"]).await;
    assert_eq!(seen.out(), "{\"quell\":\"session\"}\n{\"kind\":\"turn\",\"turn\":\"ü\u{1b}[2J\"}\n{\"last\":1}\n");
    assert_eq!(seen.err(), "", "no progress in a pipe");
}

#[tokio::test]
async fn an_export_that_broke_off_is_a_failure() {
    let (give, stream) = mpsc::channel(2);
    let daemon = streaming(stream);
    give.send(text("{\"quell\":\"session\"}\n")).await.unwrap();
    let mut test_io = TestIo::new(CliOutputStreamKind::Pipe);
    let seen = test_io.captured.clone();
    let export = run_with_io(&daemon, &["sessions", "export", "s"], &mut test_io.io);
    let cut = async {
        seen.wait_for_text("session").await;
        give.send(ScriptedStreamPiece::Break).await.unwrap();
    };
    let (exit, ()) = tokio::join!(export, cut);
    assert_eq!(exit, Exit::NoDaemon);
    assert!(seen.err().contains("was lost"), "{}", seen.err());
}

#[tokio::test]
async fn an_import_sends_the_bytes_of_its_input_and_shows_how_far_it_is() {
    let row = json!({"key": "s", "state": "expired", "createdAt": "2026-01-01T00:00:00Z",
        "lastUsedAt": "2026-01-01T00:00:00Z", "activeRuns": [], "turns": 1});
    let daemon = ScriptedDaemon::start(move |asked| {
        assert_eq!((asked.route.as_str(), &asked.body), ("POST /api/import", &json!("{\"a\":1}\n{\"b\":2}\n")));
        ScriptedDaemonReply::Json(201, row.clone())
    });
    for (kind, progress) in [(CliOutputStreamKind::Plain, true), (CliOutputStreamKind::Pipe, false)] {
        let mut test_io = TestIo::with_input(kind, "{\"a\":1}\n{\"b\":2}\n");
        let exit = run_with_io(&daemon, &["sessions", "import", "-"], &mut test_io.io).await;
        assert_eq!(exit, Exit::Done, "{}", test_io.captured.interleaved());
        assert_eq!(test_io.captured.out(), "session s is imported: 1 turn that its model will see\n");
        assert_eq!(test_io.captured.err().contains(" sent"), progress, "{:?}", test_io.captured.err());
    }
}

#[tokio::test]
async fn a_file_that_is_not_there_is_told_before_anything_is_sent() {
    let daemon = ScriptedDaemon::start(|_| panic!("nothing is to be asked"));
    let (exit, seen) = run_piped(&daemon, &["sessions", "import", "no-such-file.jsonl"]).await;
    assert_eq!(exit, Exit::Usage);
    assert!(seen.err().contains("no-such-file.jsonl cannot be read"), "{}", seen.err());
}
