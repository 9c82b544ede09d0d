//! `quell memory`: what is remembered of a session or by an agent.

use quell_protocol::memory::NoteRow;
use quell_protocol::{AgentId, SessionKey};

use super::table::{Cell, lay_out};
use super::{Exit, Format, VerbError};
use crate::link::{Link, NotesOf};
use crate::term::Io;
use crate::words::{ago, one_line};

/// Arguments of `quell memory`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Agents write notes with their tool `remember`; with [memory] auto_save messages become notes too.\n\n\
    Examples:\n  quell memory list --agent main\n  quell memory search \"favourite colour\" --session demo\n  \
    quell memory forget favourite-colour --session demo"
)]
pub struct MemoryArgs {
    #[command(subcommand)]
    what: MemoryVerb,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum MemoryVerb {
    /// List the notes, the last remembered first
    List {
        #[command(flatten)]
        whose: Whose,
    },
    /// Find notes, the most relevant first
    Search {
        /// Words; a note that has all of them has the relevance 1
        #[arg(value_name = "QUERY")]
        query: String,
        #[command(flatten)]
        whose: Whose,
        /// The most notes to print
        #[arg(long, value_name = "N", default_value_t = 10)]
        limit: usize,
    },
    /// Forget a note
    Forget {
        /// Its key
        #[arg(value_name = "KEY")]
        key: String,
        #[command(flatten)]
        whose: Whose,
    },
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Whose {
    /// The notes of this session; a reset or a deletion of it forgets them
    #[arg(long, value_name = "KEY", value_parser = super::session_key)]
    session: Option<SessionKey>,
    /// The notes of this agent, which it knows in all its sessions
    #[arg(long, value_name = "AGENT", value_parser = super::agent_id)]
    agent: Option<AgentId>,
}

impl Whose {
    fn notes(self) -> Result<NotesOf, VerbError> {
        match (self.session, self.agent) {
            (Some(session), _) => Ok(NotesOf::Session(session)),
            (None, Some(agent)) => Ok(NotesOf::Agent(agent)),
            (None, None) => Err(VerbError::Usage("say whose notes: --session KEY or --agent AGENT".to_owned())),
        }
    }
}

pub(super) async fn run(link: &Link, args: MemoryArgs, io: &mut Io) -> Result<Exit, VerbError> {
    let format = Format::from(args.json);
    match args.what {
        MemoryVerb::List { whose } => {
            let rows = link.notes(&whose.notes()?).await?;
            show(&rows, "nothing is remembered there", format, io)?;
        }
        MemoryVerb::Search { query, whose, limit } => {
            let rows = link.search_notes(&whose.notes()?, &query, limit).await?;
            show(&rows, "no note is about that", format, io)?;
        }
        MemoryVerb::Forget { key, whose } => {
            link.forget_note(&whose.notes()?, &key).await?;
            match format {
                Format::Json => io.screen.json(&serde_json::json!({"key": key, "forgotten": true}))?,
                Format::Words => io.screen.line(&format!("the note {} is forgotten", one_line(&key, 200)))?,
            }
        }
    }
    Ok(Exit::Done)
}

fn show(rows: &[NoteRow], nothing: &str, format: Format, io: &mut Io) -> Result<(), VerbError> {
    if format == Format::Json {
        io.screen.json(&rows)?;
        return Ok(());
    }
    if rows.is_empty() {
        io.screen.remark(nothing)?;
        return Ok(());
    }
    let now = jiff::Timestamp::now();
    let row = |row: &NoteRow| {
        [
            Cell::cut(&row.key, 80),
            Cell::cut(&row.category, 14),
            Cell::from(ago(&row.at, now)),
            Cell::from(row.score.map(|score| format!("{score:.2}")).unwrap_or_default()),
            Cell::cut(&row.text, 80),
        ]
    };
    let cells: Vec<[Cell; 5]> = rows.iter().map(row).collect();
    for line in lay_out(io.screen.out(), ["KEY", "CATEGORY", "REMEMBERED", "SCORE", "TEXT"], &cells) {
        io.screen.line(&line)?;
    }
    Ok(())
}
