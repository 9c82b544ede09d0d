//! `quell processes`: commands that sessions run in the background.

use quell_protocol::SessionKey;
use quell_protocol::background::ProcessRow;

use super::settle::process_line;
use super::table::{Cell, lay_out};
use super::{Exit, VerbError};
use crate::link::Link;
use crate::term::{Io, Tone};
use crate::words::{ago, one_line};

/// Arguments of `quell processes`.
#[derive(Debug, clap::Args)]
#[command(after_help = "An agent starts them with its tool `shell`. A stop of the session ends them too.\n\n\
    Examples:\n  quell processes\n  quell processes --session demo\n  quell processes output p1\n  quell processes kill p1")]
pub struct ProcessesArgs {
    /// Only those of this session; sub-agents have sessions of their own
    #[arg(long, global = true, value_name = "KEY", value_parser = super::session_key)]
    session: Option<SessionKey>,
    #[command(subcommand)]
    what: Option<ProcessVerb>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum ProcessVerb {
    /// List them (the default)
    List,
    /// Print what one has printed, as far as it is kept
    Output {
        /// Its id, such as p1
        #[arg(value_name = "ID")]
        id: String,
    },
    /// End one with everything it started, and wait until it is dead
    Kill {
        /// Its id, such as p1
        #[arg(value_name = "ID")]
        id: String,
        /// SIGKILL at once
        #[arg(long)]
        force: bool,
    },
}

pub(super) async fn run(link: &Link, args: ProcessesArgs, io: &mut Io) -> Result<Exit, VerbError> {
    let ProcessesArgs { session, what, json } = args;
    match what {
        Some(ProcessVerb::List) | None => list(link, session.as_ref(), json, io).await,
        Some(ProcessVerb::Output { id }) => {
            let session = session_of(link, session, &id).await?;
            output(link, &session, &id, json, io).await
        }
        Some(ProcessVerb::Kill { id, force }) => {
            let session = session_of(link, session, &id).await?;
            let row = link.end_process(&session, &id, force).await?;
            if json {
                io.screen.json(&row)?;
            } else {
                let tone = if row.leftovers.is_empty() { Tone::Stopped } else { Tone::Failure };
                let line = io.screen.out().paint(tone, &process_line(&row));
                io.screen.line(&line)?;
            }
            Ok(if row.leftovers.is_empty() { Exit::Done } else { Exit::Failed })
        }
    }
}

/// Ids are the daemon's, so that one says whose it is.
async fn session_of(link: &Link, named: Option<SessionKey>, id: &str) -> Result<SessionKey, VerbError> {
    if let Some(session) = named {
        return Ok(session);
    }
    let rows = link.all_processes().await?;
    let row = rows.into_iter().find(|row| row.id == id);
    row.map(|row| row.session_key).ok_or_else(|| VerbError::NotFound(format!("there is no background process {id:?}")))
}

async fn output(link: &Link, session: &SessionKey, id: &str, json: bool, io: &mut Io) -> Result<Exit, VerbError> {
    let view = link.process(session, id).await?;
    if json {
        io.screen.json(&view)?;
        return Ok(Exit::Done);
    }
    if view.missing > 0 {
        io.screen.remark(&format!("({} earlier bytes are not kept)", view.missing))?;
    }
    io.screen.answer(&view.output)?;
    io.screen.end_answer()?;
    Ok(Exit::Done)
}

async fn list(link: &Link, session: Option<&SessionKey>, json: bool, io: &mut Io) -> Result<Exit, VerbError> {
    let rows = match session {
        Some(session) => link.processes(session).await?,
        None => link.all_processes().await?,
    };
    if json {
        io.screen.json(&rows)?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        io.screen.remark(if session.is_some() {
            "nothing runs in the background of this session"
        } else {
            "nothing runs in the background"
        })?;
        return Ok(Exit::Done);
    }
    let now = jiff::Timestamp::now();
    let row = |row: &ProcessRow| {
        [
            Cell::from(row.id.clone()),
            Cell::from(standing(row)),
            Cell::from(row.pid.map(|pid| pid.to_string()).unwrap_or_default()),
            Cell::from(ago(&row.started_at, now)),
            Cell::cut(row.session_key.as_str(), 30),
            Cell::cut(&one_line(&row.command, 200), 60),
        ]
    };
    let rows: Vec<[Cell; 6]> = rows.iter().map(row).collect();
    for line in lay_out(io.screen.out(), ["ID", "STATE", "PID", "STARTED", "SESSION", "COMMAND"], &rows) {
        io.screen.line(&line)?;
    }
    Ok(Exit::Done)
}

fn standing(row: &ProcessRow) -> String {
    match (row.exit_code, row.signal, &row.how) {
        (_, _, None) => "running".to_owned(),
        (Some(code), _, _) => format!("exit {code}"),
        (None, Some(signal), _) => format!("signal {signal}"),
        (None, None, Some(how)) => how.clone(),
    }
}
