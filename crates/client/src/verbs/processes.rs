//! `quell processes`: commands that a session runs in the background.

use quell_protocol::SessionKey;
use quell_protocol::background::ProcessRow;

use super::table::{Cell, lay_out};
use super::{Exit, VerbError};
use crate::link::Link;
use crate::term::{Io, Tone};
use crate::words::{ago, one_line};

/// Arguments of `quell processes`.
#[derive(Debug, clap::Args)]
#[command(after_help = "An agent starts them with its tool `shell`. A stop of the session ends them too.\n\n\
    Examples:\n  quell processes --session demo\n  quell processes --session demo output p1\n  quell processes --session demo kill p1")]
pub struct ProcessesArgs {
    /// The session
    #[arg(long, value_name = "KEY", value_parser = super::session_key)]
    session: SessionKey,
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
    match args.what {
        Some(ProcessVerb::List) | None => list(link, &args.session, args.json, io).await,
        Some(ProcessVerb::Output { id }) => output(link, &args.session, &id, args.json, io).await,
        Some(ProcessVerb::Kill { id, force }) => {
            let row = link.end_process(&args.session, &id, force).await?;
            if args.json {
                io.screen.json(&row)?;
            } else {
                let tone = if row.leftovers.is_empty() { Tone::Stopped } else { Tone::Failure };
                let line = io.screen.out().paint(tone, &ended(&row));
                io.screen.line(&line)?;
            }
            Ok(if row.leftovers.is_empty() { Exit::Done } else { Exit::Failed })
        }
    }
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

async fn list(link: &Link, session: &SessionKey, json: bool, io: &mut Io) -> Result<Exit, VerbError> {
    let rows = link.processes(session).await?;
    if json {
        io.screen.json(&rows)?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        io.screen.remark("nothing runs in the background of this session")?;
        return Ok(Exit::Done);
    }
    let now = jiff::Timestamp::now();
    let row = |row: &ProcessRow| {
        [
            Cell::from(row.id.clone()),
            Cell::from(standing(row)),
            Cell::from(row.pid.map(|pid| pid.to_string()).unwrap_or_default()),
            Cell::from(ago(&row.started_at, now)),
            Cell::cut(&one_line(&row.command, 200), 60),
        ]
    };
    let rows: Vec<[Cell; 5]> = rows.iter().map(row).collect();
    for line in lay_out(io.screen.out(), ["ID", "STATE", "PID", "STARTED", "COMMAND"], &rows) {
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

fn ended(row: &ProcessRow) -> String {
    let others = match row.swept {
        0 => String::new(),
        1 => ", and 1 process it had started".to_owned(),
        swept => format!(", and {swept} processes it had started"),
    };
    let left: String = row.leftovers.iter().map(|name| format!(" · could not end {name}")).collect();
    format!("ended {} ({}){others}{left}", row.id, standing(row))
}
