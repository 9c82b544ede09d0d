//! The tools `remember` and `recall`, which write and search notes of the session and of the agent.

use quell_kernel::memory::{CATEGORY_CORE, MAX_SHOWN_CHARS, generate_note_key};
use quell_scope::{Cancelled, Point};
use quell_store::StoreError;
use quell_tools::ToolOutput;
use quell_tools::arguments::{self, ToolArguments};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::AgentLoop;
use crate::memory::{FoundNote, Note, NoteScope, SaveNoteOutcome};
use quell_kernel::ToolSpec;

/// The most notes in one answer.
const MAX_RECALLED_NOTES: u64 = 50;

/// The most characters of a key.
const MAX_KEY_CHARS: usize = 200;

/// Arguments of `remember`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RememberArgs {
    /// What to remember, in words that will be understood without this conversation.
    text: String,
    /// A short name for it, such as favourite-colour. The same key replaces the earlier note. Generated if absent.
    #[serde(default)]
    key: Option<String>,
    /// `session`: for this conversation only, also after it is summarised; `agent`: for you in every conversation, with
    /// anyone. `session` if absent.
    #[serde(default)]
    scope: Option<String>,
}

impl ToolArguments for RememberArgs {
    const NAME: &'static str = "remember";
    const ABOUT: &'static str = "Writes a note that `recall` finds later.";
    const EXAMPLE: &'static str = r#"{"text": "The user's favourite colour is blue.", "key": "favourite-colour"}"#;
}

/// Arguments of `recall`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RecallArgs {
    /// Words that the note has; if empty, the newest notes are listed.
    query: String,
    /// `session` or `agent`; both if absent.
    #[serde(default)]
    scope: Option<String>,
    /// The most notes to return, at most 50.
    #[serde(default)]
    limit: Option<u64>,
}

impl ToolArguments for RecallArgs {
    const NAME: &'static str = "recall";
    const ABOUT: &'static str =
        "Finds notes that were written with `remember`, and earlier messages where those are kept.";
    const EXAMPLE: &'static str = r#"{"query": "favourite colour"}"#;
}

/// Names of the tools of this file.
pub(super) const MEMORY_TOOL_NAMES: [&str; 2] = [RememberArgs::NAME, RecallArgs::NAME];

/// The tools of this file for the model, if `allowed` lists them.
pub(super) fn memory_tool_specs(allowed: &[String]) -> Vec<ToolSpec> {
    let specs = [arguments::tool_spec::<RememberArgs>(), arguments::tool_spec::<RecallArgs>()];
    let is_allowed = |spec: &ToolSpec| allowed.iter().any(|name| name == "*" || *name == spec.name);
    specs.into_iter().filter(is_allowed).collect()
}

/// Owner of a note, as named in the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoteOwner {
    Session,
    Agent,
}

impl NoteOwner {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "session" => Ok(Self::Session),
            "agent" => Ok(Self::Agent),
            other => Err(format!("field `scope`: {other:?} is neither `session` nor `agent`. Nothing was done.")),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Agent => "agent",
        }
    }
}

impl AgentLoop<'_> {
    /// Calls a tool of this file; `None` if `tool` is another one.
    pub(super) async fn call_memory_tool(
        &self,
        tool: &str,
        raw_arguments: &Value,
    ) -> Option<Result<ToolOutput, Cancelled>> {
        Some(match tool {
            RememberArgs::NAME => {
                match arguments::parse_arguments::<RememberArgs>(raw_arguments).and_then(|args| self.build_note(args)) {
                    Ok((owner, note)) => self.save_note(owner, note).await,
                    Err(problem) => Ok(ToolOutput::error(problem)),
                }
            }
            RecallArgs::NAME => match arguments::parse_arguments::<RecallArgs>(raw_arguments)
                .and_then(|args| self.build_recall_query(args))
            {
                Ok(query) => self.recall_notes(query).await,
                Err(problem) => Ok(ToolOutput::error(problem)),
            },
            _ => return None,
        })
    }

    fn build_note(&self, args: RememberArgs) -> Result<(NoteOwner, Note), String> {
        let owner = args.scope.as_deref().map_or(Ok(NoteOwner::Session), NoteOwner::parse)?;
        let text = args.text.trim().to_owned();
        if text.is_empty() {
            return Err("The text is empty. Say what is to be remembered.".to_owned());
        }
        let length = text.chars().count();
        if length > MAX_SHOWN_CHARS {
            return Err(format!(
                "The text has {length} characters, a note at most {MAX_SHOWN_CHARS}. Say it in fewer, or in several notes. \
                 Nothing was remembered."
            ));
        }
        let key = args.key.unwrap_or_else(|| generate_note_key(&text));
        if key.trim().is_empty() || key.chars().count() > MAX_KEY_CHARS || key.chars().any(char::is_control) {
            return Err(format!(
                "field `key`: expected a name of 1 to {MAX_KEY_CHARS} characters on one line. Nothing was remembered."
            ));
        }
        let clock = self.writer.clock();
        Ok((owner, Note { key, category: CATEGORY_CORE.to_owned(), text, at: clock.rfc3339(clock.now()) }))
    }

    async fn save_note(&self, owner: NoteOwner, note: Note) -> Result<ToolOutput, Cancelled> {
        let key = note.key.clone();
        let save = self.services.memory.save_note(self.note_scope(owner), note);
        Ok(match self.scope.race(Point::Remember, save).await? {
            Ok(SaveNoteOutcome::New) => ToolOutput::ok(format!("Remembered of this {} as {key:?}.", owner.as_str())),
            Ok(SaveNoteOutcome::Replaced) => ToolOutput::ok(format!(
                "Remembered of this {} as {key:?}, in place of what was remembered under that key.",
                owner.as_str()
            )),
            Ok(SaveNoteOutcome::NoSession | SaveNoteOutcome::Cancelled) => {
                ToolOutput::error("This session was deleted meanwhile, so nothing can be remembered of it.".to_owned())
            }
            Err(error) => ToolOutput::error(format!("It could not be written down: {error}.")),
        })
    }

    fn build_recall_query(&self, args: RecallArgs) -> Result<RecallQuery, String> {
        let owners = match args.scope.as_deref() {
            Some(text) => vec![NoteOwner::parse(text)?],
            None => vec![NoteOwner::Session, NoteOwner::Agent],
        };
        let default_limit = u64::try_from(self.services.memory.settings().recall_limit).unwrap_or(MAX_RECALLED_NOTES);
        let limit = args.limit.unwrap_or(default_limit).clamp(1, MAX_RECALLED_NOTES);
        Ok(RecallQuery {
            owners,
            text: args.query.trim().to_owned(),
            limit: usize::try_from(limit).unwrap_or_default(),
        })
    }

    async fn recall_notes(&self, query: RecallQuery) -> Result<ToolOutput, Cancelled> {
        let outcome = match self.scope.race(Point::Recall, self.search_notes(&query)).await? {
            Ok(outcome) => outcome,
            Err(error) => return Ok(ToolOutput::error(format!("The notes could not be read: {error}."))),
        };
        Ok(ToolOutput::ok(match outcome {
            RecallOutcome::NoNotes => no_notes_message(&query.owners),
            RecallOutcome::NoMatch => {
                format!("No note has words of {:?}. With an empty query the newest are listed.", query.text)
            }
            RecallOutcome::Notes(lines) => lines.join("\n"),
        }))
    }

    async fn search_notes(&self, query: &RecallQuery) -> Result<RecallOutcome, StoreError> {
        let memory = &self.services.memory;
        let mut newest = Vec::new();
        for owner in &query.owners {
            // waits: raced by `recall_notes`, together with the search.
            let (notes, _) = memory.newest_notes(self.note_scope(*owner), query.limit, None).await?;
            newest.extend(notes.into_iter().map(|note| format_note_line(*owner, &note, None)));
        }
        if newest.is_empty() {
            return Ok(RecallOutcome::NoNotes);
        }
        if query.text.is_empty() {
            return Ok(RecallOutcome::Notes(newest));
        }
        let scopes = query.owners.iter().map(|owner| self.note_scope(*owner)).collect();
        // waits: the same race.
        let matches = memory.search_notes(scopes, &query.text, query.limit).await?;
        let mut best: Vec<(NoteOwner, FoundNote)> = Vec::new();
        for (owner, notes) in query.owners.iter().zip(matches) {
            best.extend(notes.into_iter().map(|note| (*owner, note)));
        }
        if best.is_empty() {
            return Ok(RecallOutcome::NoMatch);
        }
        best.sort_by(|(_, one), (_, other)| other.score.total_cmp(&one.score));
        best.truncate(query.limit);
        Ok(RecallOutcome::Notes(
            best.iter().map(|(owner, found)| format_note_line(*owner, &found.note, Some(found.score))).collect(),
        ))
    }

    fn note_scope(&self, owner: NoteOwner) -> NoteScope {
        match owner {
            NoteOwner::Session => NoteScope::Session(self.writer.run().session.clone()),
            NoteOwner::Agent => NoteScope::Agent(self.agent.id.clone()),
        }
    }
}

struct RecallQuery {
    owners: Vec<NoteOwner>,
    text: String,
    limit: usize,
}

/// Outcome of a search, for the model.
enum RecallOutcome {
    /// There are no notes at all.
    NoNotes,
    /// There are notes, but none that match.
    NoMatch,
    /// One line for each note, the best or newest first.
    Notes(Vec<String>),
}

fn no_notes_message(owners: &[NoteOwner]) -> String {
    match owners {
        [NoteOwner::Session] => "This session has no notes yet. `remember` writes one.".to_owned(),
        [NoteOwner::Agent] => "You have no notes of your own yet. `remember` with scope `agent` writes one.".to_owned(),
        _ => "This session has no notes yet, and you have none of your own. `remember` writes one.".to_owned(),
    }
}

fn format_note_line(owner: NoteOwner, note: &Note, score: Option<f64>) -> String {
    let relevance = score.map(|score| format!(", relevance {score:.2}")).unwrap_or_default();
    format!("- {} ({}, {}, {}{relevance}): {}", note.key, owner.as_str(), note.category, note.at, note.text)
}
