//! Save the files that came with the message of a run, before its hooks and its first step. They lie where the files of
//! chat messages do, and the message names each of them.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use quell_kernel::attachment::{MessageFile, MessageFileKind};
use quell_protocol::{RunId, SessionKey};
use quell_scope::{Cancelled, Point};
use quell_tools::attachment::{message_file_path, write_attachment};

use super::RunTable;
use crate::live_run::{LiveRun, RunWriter};

impl RunTable {
    /// Writes the files into the agent's workdir, and adds a line for each to the message.
    pub(super) async fn save_message_files(
        &self,
        live_run: &LiveRun,
        writer: &RunWriter,
        workdir: &Path,
    ) -> Result<(), Cancelled> {
        let files = live_run.take_message_files();
        if files.is_empty() {
            return Ok(());
        }
        let label = format!("files of a message ({})", files.len());
        let (workdir, run, session) = (workdir.to_owned(), live_run.run.id.clone(), live_run.run.session.clone());
        let save = move |stop: &AtomicBool| save_files(&files, &workdir, &session, &run, stop);
        let lines = live_run.scope.blocking(Point::Attachments, &label, save).await?;
        let text = [live_run.run.text.clone()].into_iter().chain(lines).collect::<Vec<_>>().join("\n");
        Ok(writer.replace_question(text)?)
    }
}

fn save_files(
    files: &[MessageFile],
    workdir: &Path,
    session: &SessionKey,
    run: &RunId,
    stop: &AtomicBool,
) -> Vec<String> {
    let save = |(number, file): (usize, &MessageFile)| {
        let path = message_file_path(session, run, number, file.name.as_deref());
        let label = match file.kind {
            MessageFileKind::Image => "IMAGE",
            MessageFileKind::Other => "FILE",
        };
        match write_attachment(workdir, &path, &file.bytes, stop) {
            Ok(path) => format!("[{label}:{}]", path.display()),
            Err(why) => format!("[{} could not be saved: {why}]", label.to_lowercase()),
        }
    };
    files.iter().enumerate().map(save).collect()
}
