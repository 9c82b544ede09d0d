//! `quell memory`: what is remembered of a session, by an agent, or of who writes in a chat network.

use quell_protocol::memory::{NoteRow, SenderRow};
use quell_protocol::{AgentId, SessionKey};
use serde_json::json;

use super::table::{Cell, lay_out};
use super::{Exit, Format, VerbError};
use crate::link::{Link, NotesOf};
use crate::term::Io;
use crate::words::{ago, count, one_line};

/// Characters of a sender's name, which has to be given again as it stands; the longest of a network have 255.
const LONGEST_SENDER: usize = 300;

/// Arguments of `quell memory`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Agents write notes with their tool `remember`; with [memory] auto_save messages become notes too, those of private\n\
    chats notes of their sender, whom a reset or a deletion of the session does not forget.\n\n\
    Examples:\n  quell memory list --agent main\n  quell memory search \"favourite colour\" --session demo\n  \
    quell memory forget favourite-colour --session demo\n  quell memory senders\n  \
    quell memory list --sender telegram:12345678\n  quell memory forget --all --sender telegram:12345678"
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
    /// List of whom in chat networks something is remembered, the newest note first
    Senders,
    /// Forget a note, or all of a sender
    Forget {
        /// Its key
        #[arg(value_name = "KEY", required_unless_present = "all")]
        key: Option<String>,
        /// All notes of the sender
        #[arg(long, requires = "sender", conflicts_with_all = ["key", "session", "agent"])]
        all: bool,
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
    /// The notes of who writes in a chat network: CHANNEL:SENDER, as `quell memory senders` lists them
    #[arg(long, value_name = "SENDER")]
    sender: Option<String>,
}

impl Whose {
    fn notes(self) -> Result<NotesOf, VerbError> {
        match (self.session, self.agent, self.sender) {
            (Some(session), _, _) => Ok(NotesOf::Session(session)),
            (None, Some(agent), _) => Ok(NotesOf::Agent(agent)),
            (None, None, Some(sender)) => Ok(NotesOf::Sender(sender)),
            (None, None, None) => {
                let detail = "say whose notes: --session KEY, --agent AGENT or --sender SENDER";
                Err(VerbError::Usage(detail.to_owned()))
            }
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
        MemoryVerb::Senders => show_senders(&link.senders().await?, format, io)?,
        MemoryVerb::Forget { key: Some(key), whose, .. } => {
            link.forget_note(&whose.notes()?, &key).await?;
            match format {
                Format::Json => io.screen.json(&json!({"key": key, "forgotten": true}))?,
                Format::Words => io.screen.line(&format!("the note {} is forgotten", one_line(&key, 200)))?,
            }
        }
        MemoryVerb::Forget { key: None, whose, .. } => {
            let Some(sender) = whose.sender else {
                return Err(VerbError::Usage("--all needs --sender SENDER".to_owned()));
            };
            let forgotten = link.forget_sender(&sender).await?.forgotten;
            match format {
                Format::Json => io.screen.json(&json!({"sender": sender, "forgotten": forgotten}))?,
                Format::Words => {
                    let notes = count(forgotten, "note", "notes");
                    io.screen.line(&format!("{} is forgotten: {notes}", one_line(&sender, LONGEST_SENDER)))?;
                }
            }
        }
    }
    Ok(Exit::Done)
}

fn show_senders(rows: &[SenderRow], format: Format, io: &mut Io) -> Result<(), VerbError> {
    if format == Format::Json {
        io.screen.json(&rows)?;
        return Ok(());
    }
    if rows.is_empty() {
        io.screen.remark("nothing is remembered of anybody who writes in a chat network")?;
        return Ok(());
    }
    let now = jiff::Timestamp::now();
    let row = |row: &SenderRow| {
        let sender = Cell::cut(&row.sender, LONGEST_SENDER);
        [sender, Cell::from(row.notes.to_string()), Cell::from(ago(&row.newest_at, now))]
    };
    let cells: Vec<[Cell; 3]> = rows.iter().map(row).collect();
    for line in lay_out(io.screen.out(), ["SENDER", "NOTES", "NEWEST"], &cells) {
        io.screen.line(&line)?;
    }
    Ok(())
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
