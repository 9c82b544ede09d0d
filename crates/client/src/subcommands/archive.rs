//! `quell sessions export` and `quell sessions import`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use quell_protocol::SessionKey;

use super::{CliOutputFormat, Exit, SubcommandError};
use crate::daemon_client::{DaemonClient, UploadProgress};
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::{byte_size, format_count};

/// Time between two redraws of the upload status.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

pub(super) async fn print_exported_session(
    client: &DaemonClient,
    key: &SessionKey,
    io: &mut CommandIo,
) -> Result<Exit, SubcommandError> {
    let mut download = client.export_session(key).await?;
    let whole = download.length().map(|length| format!(" of {}", byte_size(length))).unwrap_or_default();
    let (mut partial_line, mut received_bytes) = (Vec::new(), 0);
    while let Some(piece) = download.next_chunk().await? {
        received_bytes += piece.len() as u64;
        // Print whole lines, since a chunk may end within a character. Each chunk is searched once.
        let whole_lines = piece.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| partial_line.len() + at + 1);
        partial_line.extend_from_slice(&piece);
        let lines: Vec<u8> = partial_line.drain(..whole_lines).collect();
        print_exported_lines(&lines, io)?;
        io.output.show_status(OutputStyle::Quiet, &format!("{}{whole}", byte_size(received_bytes)))?;
    }
    print_exported_lines(&partial_line, io)?;
    Ok(Exit::Done)
}

fn print_exported_lines(lines: &[u8], io: &mut CommandIo) -> Result<(), SubcommandError> {
    let not_utf8 = |_| {
        SubcommandError::Output(io::Error::new(io::ErrorKind::InvalidData, "the daemon sent text that is not UTF-8"))
    };
    io.output.stream_answer(std::str::from_utf8(lines).map_err(not_utf8)?)?;
    Ok(())
}

pub(super) async fn import_session_file(
    client: &DaemonClient,
    file: &Path,
    format: CliOutputFormat,
    io: &mut CommandIo,
) -> Result<Exit, SubcommandError> {
    let from: Box<dyn Read + Send> = if file == Path::new("-") {
        std::mem::replace(&mut io.input, Box::new(io::empty()))
    } else {
        let opened = File::open(file);
        Box::new(opened.map_err(|error| SubcommandError::Usage(format!("{} cannot be read: {error}", file.display())))?)
    };
    let sent = UploadProgress::default();
    let mut importing = std::pin::pin!(client.import_session(from, sent.clone()));
    let mut redraw = tokio::time::interval(REDRAW_INTERVAL);
    let session = loop {
        io.output.show_status(OutputStyle::Quiet, &format!("{} sent", byte_size(sent.bytes_sent())))?;
        tokio::select! {
            session = &mut importing => break session?,
            _ = redraw.tick() => {}
        }
    };
    if format == CliOutputFormat::Json {
        io.output.print_json(&session)?;
    } else {
        let turns = format_count(session.turns, "turn", "turns");
        io.output.print_line(&format!("session {} is imported: {turns} that its model will see", session.key))?;
    }
    Ok(Exit::Done)
}
