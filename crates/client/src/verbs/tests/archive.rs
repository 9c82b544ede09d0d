//! `quell sessions export` and `import`: byte for byte, with progress for who looks, and no half of a thing taken for the whole.

use std::sync::Mutex;

use tokio::sync::mpsc;

use super::*;
use crate::fake::daemon::Piece;

/// A daemon that exports the session `s` in these pieces.
async fn exporting(pieces: Vec<Piece>) -> Daemon {
    let (give, stream) = mpsc::channel(pieces.len().max(1));
    for piece in pieces {
        give.try_send(piece).unwrap_or_else(|_| panic!("there is room"));
    }
    let stream = Mutex::new(Some(stream));
    Daemon::start(move |asked| {
        assert_eq!(asked.what, "GET /api/sessions/s/export");
        stream.lock().unwrap().take().map_or(Reply::Silence, Reply::Stream)
    })
    .await
}

fn text(text: &str) -> Piece {
    Piece::Text(text.to_owned())
}

#[tokio::test]
async fn an_export_comes_out_as_it_came_in_wherever_its_pieces_end() {
    let pieces = vec![
        text("{\"quell\":\"session\"}\n{\"kind\""),
        text(":\"turn\",\"turn\":\"ü\u{1b}[2J"),
        text("\"}\n{\"last\":1}"),
    ];
    let daemon = exporting(pieces).await;
    let (exit, seen) = piped(&daemon, &["sessions", "export", "s"]).await;
    assert_eq!(exit, Exit::Done);
    assert_eq!(seen.out(), "{\"quell\":\"session\"}\n{\"kind\":\"turn\",\"turn\":\"ü\u{1b}[2J\"}\n{\"last\":1}\n");
    assert_eq!(seen.err(), "", "no progress in a pipe");
}

#[tokio::test]
async fn an_export_that_broke_off_is_a_failure() {
    let (give, stream) = mpsc::channel(2);
    let stream = Mutex::new(Some(stream));
    let daemon = Daemon::start(move |_| stream.lock().unwrap().take().map_or(Reply::Silence, Reply::Stream)).await;
    give.send(text("{\"quell\":\"session\"}\n")).await.unwrap();
    let mut desk = Desk::new(PaneKind::Pipe);
    let seen = desk.seen.clone();
    let export = go(&daemon, &["sessions", "export", "s"], &mut desk.io);
    let cut = async {
        seen.shows("session").await;
        give.send(Piece::Cut).await.unwrap();
    };
    let (exit, ()) = tokio::join!(export, cut);
    assert_eq!(exit, Exit::NoDaemon);
    assert!(seen.err().contains("was lost"), "{}", seen.err());
}

#[tokio::test]
async fn an_import_sends_the_bytes_of_its_input_and_shows_how_far_it_is() {
    let row = json!({"key": "s", "state": "expired", "createdAt": "2026-01-01T00:00:00Z",
        "lastUsedAt": "2026-01-01T00:00:00Z", "activeRuns": [], "turns": 1});
    let daemon = Daemon::start(move |asked| {
        assert_eq!((asked.what.as_str(), &asked.body), ("POST /api/import", &json!("{\"a\":1}\n{\"b\":2}\n")));
        Reply::Json(201, row.clone())
    })
    .await;
    for (kind, progress) in [(PaneKind::Plain, true), (PaneKind::Pipe, false)] {
        let mut desk = Desk::with_input(kind, "{\"a\":1}\n{\"b\":2}\n");
        let exit = go(&daemon, &["sessions", "import", "-"], &mut desk.io).await;
        assert_eq!(exit, Exit::Done, "{}", desk.seen.both());
        assert_eq!(desk.seen.out(), "session s is imported: 1 turn that its model will see\n");
        assert_eq!(desk.seen.err().contains(" sent"), progress, "{:?}", desk.seen.err());
    }
}

#[tokio::test]
async fn a_file_that_is_not_there_is_told_before_anything_is_sent() {
    let daemon = Daemon::start(|_| panic!("nothing is to be asked")).await;
    let (exit, seen) = piped(&daemon, &["sessions", "import", "no-such-file.jsonl"]).await;
    assert_eq!(exit, Exit::Usage);
    assert!(seen.err().contains("no-such-file.jsonl cannot be read"), "{}", seen.err());
}
