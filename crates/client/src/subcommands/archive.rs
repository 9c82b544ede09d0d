//! `quell sessions export` and `quell sessions import`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use quell_protocol::SessionKey;

use super::{SubcommandContext, SubcommandError, SubcommandResult};
use crate::daemon_client::UploadProgress;
use crate::term::OutputStyle;
use crate::text_format::{byte_size, format_count};

/// Time between two redraws of the upload status.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

pub(super) async fn print_exported_session(cx: &mut SubcommandContext<'_>, key: &SessionKey) -> SubcommandResult<()> {
    let mut download = cx.client.export_session(key).await?;
    let whole = download.length().map(|length| format!(" of {}", byte_size(length))).unwrap_or_default();
    let (mut partial_line, mut received_bytes) = (Vec::new(), 0);
    while let Some(piece) = download.next_chunk().await? {
        received_bytes += piece.len() as u64;
        // Print whole lines, since a chunk may end within a character. Each chunk is searched once.
        let whole_lines = piece.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| partial_line.len() + at + 1);
        partial_line.extend_from_slice(&piece);
        let lines: Vec<u8> = partial_line.drain(..whole_lines).collect();
        print_exported_lines(cx, &lines)?;
        cx.io.output.show_status(OutputStyle::Quiet, &format!("{}{whole}", byte_size(received_bytes)))?;
    }
    print_exported_lines(cx, &partial_line)
}

fn print_exported_lines(cx: &mut SubcommandContext<'_>, lines: &[u8]) -> SubcommandResult<()> {
    let not_utf8 = |_| {
        SubcommandError::Output(io::Error::new(io::ErrorKind::InvalidData, "the daemon sent text that is not UTF-8"))
    };
    cx.io.output.stream_answer(std::str::from_utf8(lines).map_err(not_utf8)?)?;
    Ok(())
}

pub(super) async fn import_session_file(cx: &mut SubcommandContext<'_>, file: &Path) -> SubcommandResult<()> {
    let from: Box<dyn Read + Send> = if file == Path::new("-") {
        std::mem::replace(&mut cx.io.input, Box::new(io::empty()))
    } else {
        let opened = File::open(file);
        Box::new(opened.map_err(|error| SubcommandError::Usage(format!("{} cannot be read: {error}", file.display())))?)
    };
    let sent = UploadProgress::default();
    let mut importing = std::pin::pin!(cx.client.import_session(from, sent.clone()));
    let mut redraw = tokio::time::interval(REDRAW_INTERVAL);
    let session = loop {
        cx.io.output.show_status(OutputStyle::Quiet, &format!("{} sent", byte_size(sent.bytes_sent())))?;
        tokio::select! {
            session = &mut importing => break session?,
            _ = redraw.tick() => {}
        }
    };
    let turns = format_count(session.turns, "turn", "turns");
    Ok(cx.print_value(&session, &format!("session {} is imported: {turns} that its model will see", session.key))?)
}
