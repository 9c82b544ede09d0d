//! `quell processes`: list background processes, print their output, end one.

use quell_protocol::SessionKey;
use quell_protocol::background::ProcessRow;

use super::stop_report::process_end_text;
use super::table::{CliTableCell, print_table};
use super::{Exit, SubcommandError};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::{one_line, relative_age};

/// Arguments of `quell processes`.
#[derive(Debug, clap::Args)]
#[command(after_help = "An agent starts them with its tool `shell`. A stop of the session ends them too.\n\n\
    Examples:\n  quell processes\n  quell processes --session demo\n  quell processes output p1\n  quell processes kill p1")]
pub struct ProcessesArgs {
    /// Only those of this session; sub-agents have sessions of their own
    #[arg(long, global = true, value_name = "KEY")]
    session: Option<SessionKey>,
    #[command(subcommand)]
    what: Option<ProcessesSubcommand>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum ProcessesSubcommand {
    /// List the processes (the default)
    List,
    /// Print the kept output of a process
    Output {
        /// The process's id, such as p1
        #[arg(value_name = "ID")]
        id: String,
    },
    /// End a process with everything it started, and wait until it is dead
    Kill {
        /// The process's id, such as p1
        #[arg(value_name = "ID")]
        id: String,
        /// Send SIGKILL at once
        #[arg(long)]
        force: bool,
    },
}

pub(super) async fn run(
    client: &DaemonClient,
    args: ProcessesArgs,
    io: &mut CommandIo,
) -> Result<Exit, SubcommandError> {
    let ProcessesArgs { session, what, json } = args;
    match what {
        Some(ProcessesSubcommand::List) | None => print_processes(client, session.as_ref(), json, io).await,
        Some(ProcessesSubcommand::Output { id }) => {
            let session = find_session_of(client, session, &id).await?;
            print_process_output(client, &session, &id, json, io).await
        }
        Some(ProcessesSubcommand::Kill { id, force }) => {
            let session = find_session_of(client, session, &id).await?;
            let row = client.end_process(&session, &id, force).await?;
            if json {
                io.output.print_json(&row)?;
            } else {
                let tone = if row.leftovers.is_empty() { OutputStyle::Stopped } else { OutputStyle::Failure };
                let line = io.output.stdout().apply_style(tone, &process_end_text(&row));
                io.output.print_line(&line)?;
            }
            Ok(if row.leftovers.is_empty() { Exit::Done } else { Exit::Failed })
        }
    }
}

/// Finds the session of a process; its id is unique in the daemon.
async fn find_session_of(
    client: &DaemonClient,
    named: Option<SessionKey>,
    id: &str,
) -> Result<SessionKey, SubcommandError> {
    if let Some(session) = named {
        return Ok(session);
    }
    let rows = client.list_all_processes().await?;
    let row = rows.into_iter().find(|row| row.id == id);
    row.map(|row| row.session_key)
        .ok_or_else(|| SubcommandError::NotFound(format!("there is no background process {id:?}")))
}

async fn print_process_output(
    client: &DaemonClient,
    session: &SessionKey,
    id: &str,
    json: bool,
    io: &mut CommandIo,
) -> Result<Exit, SubcommandError> {
    let view = client.get_process(session, id).await?;
    if json {
        io.output.print_json(&view)?;
        return Ok(Exit::Done);
    }
    if view.missing > 0 {
        io.output.eprint_line(&format!("({} earlier bytes are not kept)", view.missing))?;
    }
    io.output.stream_answer(&view.output)?;
    io.output.end_answer_line()?;
    Ok(Exit::Done)
}

async fn print_processes(
    client: &DaemonClient,
    session: Option<&SessionKey>,
    json: bool,
    io: &mut CommandIo,
) -> Result<Exit, SubcommandError> {
    let rows = match session {
        Some(session) => client.list_processes(session).await?,
        None => client.list_all_processes().await?,
    };
    let nothing = match session {
        Some(_) => "nothing runs in the background of this session",
        None => "nothing runs in the background",
    };
    let now = jiff::Timestamp::now();
    let row = |row: &ProcessRow| {
        [
            CliTableCell::from(row.id.clone()),
            CliTableCell::from(process_state_text(row)),
            CliTableCell::from(row.pid.map(|pid| pid.to_string()).unwrap_or_default()),
            CliTableCell::from(relative_age(&row.started_at, now)),
            CliTableCell::truncated(row.session_key.as_str(), 30),
            CliTableCell::truncated(&one_line(&row.command, 200), 60),
        ]
    };
    let heads = ["ID", "STATE", "PID", "STARTED", "SESSION", "COMMAND"];
    print_table(&rows, heads, row, nothing, json.into(), io)?;
    Ok(Exit::Done)
}

fn process_state_text(row: &ProcessRow) -> String {
    match (row.exit_code, row.signal, &row.how) {
        (_, _, None) => "running".to_owned(),
        (Some(code), _, _) => format!("exit {code}"),
        (None, Some(signal), _) => format!("signal {signal}"),
        (None, None, Some(how)) => how.clone(),
    }
}
