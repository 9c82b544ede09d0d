//! `quell memory`: list, search and forget notes.

use quell_protocol::memory::{NoteRow, SenderRow};
use quell_protocol::{AgentId, SessionKey};
use serde_json::json;

use super::table::CliTableCell;
use super::{Exit, SubcommandContext, SubcommandError, SubcommandResult};
use crate::daemon_client::{DaemonClient, NotesOwner};
use crate::term::CommandIo;
use crate::text_format::{format_count, one_line, relative_age};

/// Characters of a sender's name that are printed, so that it can be given back unchanged. The longest name of a
/// network has 255.
const MAX_SENDER_CHARS: usize = 300;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Agents write notes with their tool `remember`; with [memory] auto_save messages become notes too. Those of\n\
    private chats belong to their sender and stay after a reset or deletion of the session.\n\n\
    Examples:\n  quell memory list --agent main\n  quell memory search \"favourite colour\" --session demo\n  \
    quell memory forget favourite-colour --session demo\n  quell memory senders\n  \
    quell memory list --sender telegram:12345678\n  quell memory forget --all --sender telegram:12345678"
)]
pub struct MemoryArgs {
    #[command(subcommand)]
    what: MemorySubcommand,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum MemorySubcommand {
    /// List the notes, newest first
    List {
        #[command(flatten)]
        whose: NotesOwnerArgs,
    },
    /// Search notes, most relevant first
    Search {
        /// Words; a note that has all of them has the relevance 1
        #[arg(value_name = "QUERY")]
        query: String,
        #[command(flatten)]
        whose: NotesOwnerArgs,
        /// Most notes to print
        #[arg(long, value_name = "N", default_value_t = 10)]
        limit: usize,
    },
    /// List the senders in chat networks that have notes, the one with the newest note first
    Senders,
    /// Forget a note, or all notes of a sender
    Forget {
        /// The note's key
        #[arg(value_name = "KEY", required_unless_present = "all")]
        key: Option<String>,
        /// Forget all notes of the sender
        #[arg(long, requires = "sender", conflicts_with_all = ["key", "session", "agent"])]
        all: bool,
        #[command(flatten)]
        whose: NotesOwnerArgs,
    },
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct NotesOwnerArgs {
    /// The notes of this session; a reset or a deletion of the session forgets them
    #[arg(long, value_name = "KEY")]
    session: Option<SessionKey>,
    /// The notes of this agent, known in all its sessions
    #[arg(long, value_name = "AGENT")]
    agent: Option<AgentId>,
    /// The notes of a sender in a chat network: CHANNEL:SENDER, as `quell memory senders` lists them
    #[arg(long, value_name = "SENDER")]
    sender: Option<String>,
}

impl NotesOwnerArgs {
    fn notes_owner(self) -> Result<NotesOwner, SubcommandError> {
        match (self.session, self.agent, self.sender) {
            (Some(session), _, _) => Ok(NotesOwner::Session(session)),
            (None, Some(agent), _) => Ok(NotesOwner::Agent(agent)),
            (None, None, Some(sender)) => Ok(NotesOwner::Sender(sender)),
            (None, None, None) => {
                let detail = "say whose notes: --session KEY, --agent AGENT or --sender SENDER";
                Err(SubcommandError::Usage(detail.to_owned()))
            }
        }
    }
}

pub(super) async fn run(client: &DaemonClient, args: MemoryArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    match args.what {
        MemorySubcommand::List { whose } => {
            let rows = client.list_notes(&whose.notes_owner()?).await?;
            print_notes(cx, &rows, "nothing is remembered there")
        }
        MemorySubcommand::Search { query, whose, limit } => {
            let rows = client.search_notes(&whose.notes_owner()?, &query, limit).await?;
            print_notes(cx, &rows, "no note is about that")
        }
        MemorySubcommand::Senders => print_senders(cx, &client.list_senders().await?),
        MemorySubcommand::Forget { key: Some(key), whose, .. } => {
            client.forget_note(&whose.notes_owner()?, &key).await?;
            let text = format!("the note {} is forgotten", one_line(&key, 200));
            cx.print_value(&json!({"key": key, "forgotten": true}), &text)?;
            Ok(Exit::Done)
        }
        MemorySubcommand::Forget { key: None, whose, .. } => {
            let Some(sender) = whose.sender else {
                return Err(SubcommandError::Usage("--all needs --sender SENDER".to_owned()));
            };
            let forgotten = client.forget_sender(&sender).await?.forgotten;
            let notes = format_count(forgotten, "note", "notes");
            let text = format!("{} is forgotten: {notes}", one_line(&sender, MAX_SENDER_CHARS));
            cx.print_value(&json!({"sender": sender, "forgotten": forgotten}), &text)?;
            Ok(Exit::Done)
        }
    }
}

fn print_senders(cx: &mut SubcommandContext<'_>, rows: &[SenderRow]) -> SubcommandResult {
    let now = jiff::Timestamp::now();
    let row = |row: &SenderRow| {
        let sender = CliTableCell::truncated(&row.sender, MAX_SENDER_CHARS);
        [sender, CliTableCell::from(row.notes.to_string()), CliTableCell::from(relative_age(&row.newest_at, now))]
    };
    let nothing = "nothing is remembered of anybody who writes in a chat network";
    cx.print_table(rows, ["SENDER", "NOTES", "NEWEST"], row, nothing)
}

fn print_notes(cx: &mut SubcommandContext<'_>, rows: &[NoteRow], nothing: &str) -> SubcommandResult {
    let now = jiff::Timestamp::now();
    let row = |row: &NoteRow| {
        [
            CliTableCell::truncated(&row.key, 80),
            CliTableCell::truncated(&row.category, 14),
            CliTableCell::from(relative_age(&row.at, now)),
            CliTableCell::from(row.score.map(|score| format!("{score:.2}")).unwrap_or_default()),
            CliTableCell::truncated(&row.text, 80),
        ]
    };
    cx.print_table(rows, ["KEY", "CATEGORY", "REMEMBERED", "SCORE", "TEXT"], row, nothing)
}
