//! `quell sessions`: list, show, share, reset, delete, export and import sessions.

use std::path::PathBuf;

use jiff::Timestamp;
use quell_protocol::SessionKey;
use quell_protocol::api::{HistoryMessage, SessionRow, SharingRequest};
use quell_protocol::session::{SessionView, Setting, SettingSource};
use serde_json::json;

use super::diff::print_diff;
use super::table::{CliTableCell, cell_text, verdict_cell};
use super::{Exit, SubcommandContext, SubcommandResult, archive};
use crate::daemon_client::DaemonClient;
use crate::term::{CommandIo, OutputStyle};
use crate::text_format::{format_count, one_line, relative_age, strip_terminal_controls};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  quell sessions\n  quell sessions show cli:default\n  quell sessions reset cli:default\n  \
    quell sessions share cli:default\n  \
    quell sessions export cli:default > default.jsonl\n  quell sessions import default.jsonl"
)]
pub struct SessionsArgs {
    #[command(subcommand)]
    what: Option<SessionsSubcommand>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum SessionsSubcommand {
    /// List the sessions (the default)
    List,
    /// Show a session with its history
    Show {
        /// The session's key
        key: SessionKey,
    },
    /// Clear a session's history
    Reset {
        /// The session's key
        key: SessionKey,
    },
    /// Let every token read a session and send to it, as far as its scopes go
    Share {
        /// The session's key
        key: SessionKey,
        /// Make it private again
        #[arg(long)]
        off: bool,
    },
    /// Print a session as lines of JSON, with its receipts and its whole history
    Export {
        /// The session's key
        key: SessionKey,
    },
    /// Import an exported session, completely or not at all
    Import {
        /// The file; - is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Delete a session with its history, its notes and the files that came with its messages; notes of senders in
    /// private chats stay: `quell memory senders`
    Delete {
        /// The session's key
        key: SessionKey,
    },
}

pub(super) async fn run(client: &DaemonClient, args: SessionsArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    match args.what {
        Some(SessionsSubcommand::List) | None => return print_sessions(cx).await,
        Some(SessionsSubcommand::Show { key }) => print_session(cx, &key).await?,
        Some(SessionsSubcommand::Reset { key }) => {
            client.reset_session(&key).await?;
            print_session_change(cx, &key, "reset")?;
        }
        Some(SessionsSubcommand::Share { key, off }) => {
            let row = client.share_session(&key, SharingRequest { shared: !off }).await?;
            print_session_change(cx, &key, if row.shared { "shared" } else { "private" })?;
        }
        Some(SessionsSubcommand::Export { key }) => archive::print_exported_session(cx, &key).await?,
        Some(SessionsSubcommand::Import { file }) => archive::import_session_file(cx, &file).await?,
        Some(SessionsSubcommand::Delete { key }) => {
            client.delete_session(&key).await?;
            print_session_change(cx, &key, "deleted")?;
        }
    }
    Ok(Exit::Done)
}

fn print_session_change(cx: &mut SubcommandContext<'_>, key: &SessionKey, word: &str) -> SubcommandResult<()> {
    Ok(cx.print_value(&json!({"key": key, word: true}), &format!("session {key} is {word}"))?)
}

async fn print_sessions(cx: &mut SubcommandContext<'_>) -> SubcommandResult {
    let sessions = cx.client.list_sessions().await?;
    let (now, heads) = (Timestamp::now(), ["SESSION", "STATE", "AGENT", "TURNS", "LAST USED"]);
    let nothing = "no sessions yet: `quell send \"hello\"` makes one";
    cx.print_table(&sessions, heads, |session| session_row(session, now), nothing)
}

fn session_row(session: &SessionRow, now: Timestamp) -> [CliTableCell; 5] {
    let state = match session.active_runs.len() {
        0 => session.state.clone(),
        number => format!("● {}, {}", session.state, format_count(number as u64, "run", "runs")),
    };
    [
        session.key.to_string().into(),
        CliTableCell::truncated(&state, 40),
        CliTableCell::truncated(session.agent.as_ref().map_or("", |agent| agent.as_str()), 40),
        session.turns.to_string().into(),
        relative_age(&session.last_used_at, now).into(),
    ]
}

async fn print_session(cx: &mut SubcommandContext<'_>, key: &SessionKey) -> SubcommandResult<()> {
    let view = cx.client.get_session(key).await?;
    let history = cx.client.get_history(key).await?;
    if cx.print_json(&json!({"session": view, "history": history}))? {
        return Ok(());
    }
    let session = &view.row;
    let now = Timestamp::now();
    let turns = format_count(session.turns, "turn", "turns");
    let used = relative_age(&session.last_used_at, now);
    let head = format!("{} · {} · {turns} · last used {used}", session.key, one_line(&session.state, 24));
    cx.print_styled(OutputStyle::Strong, &head)?;
    let owner = session.owner.as_ref().map_or("nobody known", |owner| owner.as_str());
    let sharing = if session.shared { "shared with every token" } else { "private" };
    cx.io.output.print_line(&format!("owner: {} · {sharing}", one_line(owner, 60)))?;
    for run in &session.active_runs {
        cx.io.output.print_line(&format!("active: run {run} · stop it with `quell stop {run}`"))?;
    }
    for line in settings_lines(&view) {
        cx.print_styled(OutputStyle::Quiet, &line)?;
    }
    if !view.instructions.is_empty() {
        let files = one_line(&view.instructions.join(", "), 400);
        cx.print_styled(OutputStyle::Quiet, &format!("project instructions: {files}"))?;
    }
    for message in &history {
        print_history_message(cx, message, now)?;
    }
    Ok(())
}

/// Settings of the next run, each with its source where that is not the agent.
fn settings_lines(view: &SessionView) -> Vec<String> {
    let problem = view.config_problem.iter().map(|problem| format!("its next run would fail: {problem}"));
    let Some(config) = &view.config else { return problem.collect() };
    let mut parts = vec![setting_text("model", &config.model), format!("agent {}", config.agent)];
    parts.extend(config.temperature.as_ref().map(|setting| setting_text("temperature", setting)));
    parts.extend(config.max_tokens.as_ref().map(|setting| setting_text("max tokens", setting)));
    parts.extend(config.language.as_ref().map(|setting| setting_text("language", setting)));
    parts.extend(config.base_url.as_ref().map(|place| format!("at {place}")));
    parts.extend(config.api_key.as_ref().map(|key| format!("API key {key}")));
    parts.extend(config.mcp_url.as_ref().map(|place| format!("MCP endpoint {place}")));
    parts.extend(config.mcp_api_key.as_ref().map(|key| format!("MCP key {key}")));
    if let Some(Setting { value, from: SettingSource::Session }) = &config.mcp_servers {
        parts.push(format!("MCP servers {}", value.join(", ")));
    }
    let life = format!("expires after {} s without use", config.idle_s);
    let prompt = Some(&config.instruction).filter(|setting| setting.from == SettingSource::Session);
    let prompt = prompt.map(|setting| format!("instruction: {}", one_line(&setting.value, 100)));
    problem.chain([one_line(&parts.join(" · "), 400), life]).chain(prompt).collect()
}

fn setting_text<T: std::fmt::Display>(what: &str, setting: &Setting<T>) -> String {
    let from = match setting.from {
        SettingSource::Session => " (its own)",
        SettingSource::Default => " (default)",
        SettingSource::Agent => "",
    };
    format!("{what} {}{from}", setting.value)
}

fn print_history_message(
    cx: &mut SubcommandContext<'_>,
    message: &HistoryMessage,
    now: Timestamp,
) -> SubcommandResult<()> {
    let seen = if message.partial { " · not seen by the model" } else { "" };
    let head = format!("{} · {}{seen}", one_line(&message.role, 24), relative_age(&message.at, now));
    cx.io.output.print_line("")?;
    cx.print_styled(OutputStyle::Quiet, &head)?;
    if !message.text.trim().is_empty() {
        let text = if cx.io.output.stdout().is_terminal() {
            strip_terminal_controls(&message.text)
        } else {
            message.text.clone()
        };
        cx.io.output.print_line(text.trim_end())?;
    }
    if let Some(diff) = &message.diff {
        print_diff(cx, diff)?;
    }
    for call in &message.calls {
        let arguments = one_line(&call.arguments.to_string(), 100);
        cx.io.output.print_line(&format!("{}  {arguments}", one_line(&call.tool, 40)))?;
    }
    if let Some(verdict) = &message.verdict {
        let line = cell_text(cx.io.output.stdout(), &verdict_cell(verdict));
        let run = message.run_id.as_ref().map(|id| format!(" · run {id}")).unwrap_or_default();
        cx.io.output.print_line(&format!("{line}{run}"))?;
    }
    Ok(())
}
