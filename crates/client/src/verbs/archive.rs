//! `quell sessions export` and `import`: a session as lines of JSON, out of one daemon and into another.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use quell_protocol::SessionKey;

use super::{Exit, Format, VerbError};
use crate::link::{Link, SentSoFar};
use crate::term::{Io, Tone};
use crate::words::{count, size};

/// How often the status of a long upload is drawn anew.
const REDRAW: Duration = Duration::from_millis(200);

pub(super) async fn export(link: &Link, key: &SessionKey, io: &mut Io) -> Result<Exit, VerbError> {
    let mut download = link.export_session(key).await?;
    let whole = download.length().map(|length| format!(" of {}", size(length))).unwrap_or_default();
    let (mut begun, mut got) = (Vec::new(), 0);
    while let Some(piece) = download.piece().await? {
        got += piece.len() as u64;
        // Whole lines, since a piece may end within a character. A long one is looked through once.
        let whole_lines = piece.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| begun.len() + at + 1);
        begun.extend_from_slice(&piece);
        let lines: Vec<u8> = begun.drain(..whole_lines).collect();
        say(&lines, io)?;
        io.screen.status(Tone::Quiet, &format!("{}{whole}", size(got)))?;
    }
    say(&begun, io)?;
    Ok(Exit::Done)
}

fn say(lines: &[u8], io: &mut Io) -> Result<(), VerbError> {
    let odd = |_| VerbError::Output(io::Error::new(io::ErrorKind::InvalidData, "the daemon sent what is not UTF-8"));
    io.screen.answer(std::str::from_utf8(lines).map_err(odd)?)?;
    Ok(())
}

pub(super) async fn import(link: &Link, file: &Path, format: Format, io: &mut Io) -> Result<Exit, VerbError> {
    let from: Box<dyn Read + Send> = if file == Path::new("-") {
        std::mem::replace(&mut io.input, Box::new(io::empty()))
    } else {
        let opened = File::open(file);
        Box::new(opened.map_err(|error| VerbError::Usage(format!("{} cannot be read: {error}", file.display())))?)
    };
    let sent = SentSoFar::default();
    let mut importing = std::pin::pin!(link.import_session(from, sent.clone()));
    let mut redraw = tokio::time::interval(REDRAW);
    let session = loop {
        io.screen.status(Tone::Quiet, &format!("{} sent", size(sent.bytes())))?;
        tokio::select! {
            session = &mut importing => break session?,
            // A tick that is lost costs one drawing.
            _ = redraw.tick() => {}
        }
    };
    if format == Format::Json {
        io.screen.json(&session)?;
    } else {
        let turns = count(session.turns, "turn", "turns");
        io.screen.line(&format!("session {} is imported: {turns} that its model will see", session.key))?;
    }
    Ok(Exit::Done)
}
