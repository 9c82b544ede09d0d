//! `quell processes`: list background commands and MCP servers, print their output, end one.

use quell_protocol::SessionKey;
use quell_protocol::background::ProcessRow;

use super::stop_report::process_end_text;
use super::table::CliTableCell;
use super::{Exit, SubcommandContext, SubcommandError, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::{one_line, relative_age};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "An agent starts commands in the background with its tool `shell` (p1, p2); a stop of the session ends \
    them. Sessions also have the programs of their MCP servers (m1, m2); a stop of everything, or of the session with \
    --force, ends them. ALIVE is the number of living processes of each.\n\n\
    Examples:\n  quell processes\n  quell processes --session demo\n  quell processes output p1\n  quell processes kill p1"
)]
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

pub(super) async fn run(client: &DaemonClient, args: ProcessesArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    let ProcessesArgs { session, what, .. } = args;
    match what {
        Some(ProcessesSubcommand::List) | None => print_processes(cx, session.as_ref()).await,
        Some(ProcessesSubcommand::Output { id }) => {
            let session = find_session_of(client, session, &id).await?;
            print_process_output(cx, &session, &id).await
        }
        Some(ProcessesSubcommand::Kill { id, force }) => {
            let session = find_session_of(client, session, &id).await?;
            let row = client.end_process(&session, &id, force).await?;
            let (style, exit) = match row.leftovers.is_empty() {
                true => (OutputStyle::Stopped, Exit::Done),
                false => (OutputStyle::Failure, Exit::Failed),
            };
            if !cx.print_json(&row)? {
                cx.print_styled(style, &process_end_text(&row))?;
            }
            Ok(exit)
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

async fn print_process_output(cx: &mut SubcommandContext<'_>, session: &SessionKey, id: &str) -> SubcommandResult {
    let view = cx.client.get_process(session, id).await?;
    if cx.print_json(&view)? {
        return Ok(Exit::Done);
    }
    if view.missing > 0 {
        cx.io.output.eprint_line(&format!("({} earlier bytes are not kept)", view.missing))?;
    }
    cx.io.output.stream_answer(&view.output)?;
    cx.io.output.end_answer_line()?;
    Ok(Exit::Done)
}

async fn print_processes(cx: &mut SubcommandContext<'_>, session: Option<&SessionKey>) -> SubcommandResult {
    let rows = match session {
        Some(session) => cx.client.list_processes(session).await?,
        None => cx.client.list_all_processes().await?,
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
            CliTableCell::from(if row.alive.is_empty() { String::new() } else { row.alive.len().to_string() }),
            CliTableCell::from(relative_age(&row.started_at, now)),
            CliTableCell::truncated(row.session_key.as_str(), 30),
            CliTableCell::truncated(&one_line(&row.command, 200), 60),
        ]
    };
    let heads = ["ID", "STATE", "PID", "ALIVE", "STARTED", "SESSION", "COMMAND"];
    cx.print_table(&rows, heads, row, nothing)
}

fn process_state_text(row: &ProcessRow) -> String {
    match (row.exit_code, row.signal, &row.how) {
        (_, _, None) => "running".to_owned(),
        (Some(code), _, _) => format!("exit {code}"),
        (None, Some(signal), _) => format!("signal {signal}"),
        (None, None, Some(how)) => how.clone(),
    }
}
