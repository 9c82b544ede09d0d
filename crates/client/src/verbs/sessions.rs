//! `quell sessions`: look at sessions, empty or remove them, carry them elsewhere.

use std::path::PathBuf;

use jiff::Timestamp;
use quell_protocol::SessionKey;
use quell_protocol::api::{HistoryMessage, SessionRow};
use quell_protocol::session::{SessionView, Setting, SettingSource};
use serde_json::json;

use super::table::{Cell, lay_out, painted, verdict_cell};
use super::{Exit, Format, VerbError, archive, session_key};
use crate::link::Link;
use crate::term::{Io, Tone};
use crate::words::{ago, count, harmless, one_line};

/// Arguments of `quell sessions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  quell sessions\n  quell sessions show cli:default\n  quell sessions reset cli:default\n  \
    quell sessions export cli:default > default.jsonl\n  quell sessions import default.jsonl"
)]
pub struct SessionsArgs {
    #[command(subcommand)]
    what: Option<SessionsVerb>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum SessionsVerb {
    /// List the sessions (the default)
    List,
    /// Show a session and what was said in it
    Show {
        /// Its key
        #[arg(value_parser = session_key)]
        key: SessionKey,
    },
    /// Empty a session's history; its next message starts afresh
    Reset {
        /// Its key
        #[arg(value_parser = session_key)]
        key: SessionKey,
    },
    /// Print a session as lines of JSON, with its receipts and its whole past
    Export {
        /// Its key
        #[arg(value_parser = session_key)]
        key: SessionKey,
    },
    /// Take in a session that was exported, whole or not at all
    Import {
        /// The file; - is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Remove a session with its history, notes and the files that came with its messages; notes of who wrote in a private chat
    /// stay: `quell memory senders`
    Delete {
        /// Its key
        #[arg(value_parser = session_key)]
        key: SessionKey,
    },
}

pub(super) async fn run(link: &Link, args: SessionsArgs, io: &mut Io) -> Result<Exit, VerbError> {
    match args.what {
        Some(SessionsVerb::List) | None => list(link, args.json.into(), io).await?,
        Some(SessionsVerb::Show { key }) => show(link, &key, args.json.into(), io).await?,
        Some(SessionsVerb::Reset { key }) => {
            link.reset_session(&key).await?;
            done(&key, "reset", args.json.into(), io)?;
        }
        Some(SessionsVerb::Export { key }) => return archive::export(link, &key, io).await,
        Some(SessionsVerb::Import { file }) => return archive::import(link, &file, args.json.into(), io).await,
        Some(SessionsVerb::Delete { key }) => {
            link.delete_session(&key).await?;
            done(&key, "deleted", args.json.into(), io)?;
        }
    }
    Ok(Exit::Done)
}

fn done(key: &SessionKey, word: &str, format: Format, io: &mut Io) -> Result<(), VerbError> {
    if format == Format::Json {
        io.screen.json(&json!({"key": key, word: true}))?;
    } else {
        io.screen.line(&format!("session {key} is {word}"))?;
    }
    Ok(())
}

async fn list(link: &Link, format: Format, io: &mut Io) -> Result<(), VerbError> {
    let sessions = link.sessions().await?;
    if format == Format::Json {
        io.screen.json(&sessions)?;
        return Ok(());
    }
    if sessions.is_empty() {
        io.screen.remark("no sessions yet: `quell send \"hello\"` makes one")?;
        return Ok(());
    }
    let now = Timestamp::now();
    let rows: Vec<[Cell; 5]> = sessions.iter().map(|session| row(session, now)).collect();
    for line in lay_out(io.screen.out(), ["SESSION", "STATE", "AGENT", "TURNS", "LAST USED"], &rows) {
        io.screen.line(&line)?;
    }
    Ok(())
}

fn row(session: &SessionRow, now: Timestamp) -> [Cell; 5] {
    let state = match session.active_runs.len() {
        0 => session.state.clone(),
        number => format!("● {}, {}", session.state, count(number as u64, "run", "runs")),
    };
    [
        session.key.to_string().into(),
        Cell::cut(&state, 40),
        Cell::cut(session.agent.as_ref().map_or("", |agent| agent.as_str()), 40),
        session.turns.to_string().into(),
        ago(&session.last_used_at, now).into(),
    ]
}

async fn show(link: &Link, key: &SessionKey, format: Format, io: &mut Io) -> Result<(), VerbError> {
    let view = link.session(key).await?;
    let history = link.history(key).await?;
    if format == Format::Json {
        io.screen.json(&json!({"session": view, "history": history}))?;
        return Ok(());
    }
    let session = &view.row;
    let now = Timestamp::now();
    let turns = count(session.turns, "turn", "turns");
    let used = ago(&session.last_used_at, now);
    let head = format!("{} · {} · {turns} · last used {used}", session.key, one_line(&session.state, 24));
    let head = io.screen.out().paint(Tone::Strong, &head);
    io.screen.line(&head)?;
    for run in &session.active_runs {
        io.screen.line(&format!("active: run {run} · stop it with `quell stop {run}`"))?;
    }
    for line in settings(&view) {
        let line = io.screen.out().paint(Tone::Quiet, &line);
        io.screen.line(&line)?;
    }
    for message in &history {
        say(message, now, io)?;
    }
    Ok(())
}

/// What its next run works with, and who says so where it is not the agent.
fn settings(view: &SessionView) -> Vec<String> {
    let problem = view.config_problem.iter().map(|problem| format!("its next run would fail: {problem}"));
    let Some(config) = &view.config else { return problem.collect() };
    let mut parts = vec![said("model", &config.model), format!("agent {}", config.agent)];
    parts.extend(config.temperature.as_ref().map(|setting| said("temperature", setting)));
    parts.extend(config.max_tokens.as_ref().map(|setting| said("max tokens", setting)));
    parts.extend(config.language.as_ref().map(|setting| said("language", setting)));
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

fn said<T: std::fmt::Display>(what: &str, setting: &Setting<T>) -> String {
    let from = match setting.from {
        SettingSource::Session => " (its own)",
        SettingSource::Default => " (default)",
        SettingSource::Agent => "",
    };
    format!("{what} {}{from}", setting.value)
}

fn say(message: &HistoryMessage, now: Timestamp, io: &mut Io) -> Result<(), VerbError> {
    let seen = if message.partial { " · not seen by the model" } else { "" };
    let head = format!("{} · {}{seen}", one_line(&message.role, 24), ago(&message.at, now));
    let head = io.screen.out().paint(Tone::Quiet, &head);
    io.screen.line("")?;
    io.screen.line(&head)?;
    if !message.text.trim().is_empty() {
        let text = if io.screen.out().is_terminal() { harmless(&message.text) } else { message.text.clone() };
        io.screen.line(text.trim_end())?;
    }
    for call in &message.calls {
        let arguments = one_line(&call.arguments.to_string(), 100);
        io.screen.line(&format!("{}  {arguments}", one_line(&call.tool, 40)))?;
    }
    if let Some(verdict) = &message.verdict {
        let line = painted(io.screen.out(), &verdict_cell(verdict));
        let run = message.run_id.as_ref().map(|id| format!(" · run {id}")).unwrap_or_default();
        io.screen.line(&format!("{line}{run}"))?;
    }
    Ok(())
}
