//! The tools `remember` and `recall`: notes of the session, and of the agent in all its sessions.

use quell_kernel::memory::{CORE, LONGEST_SHOWN, key_of};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::Job;
use crate::llm::ToolSpec;
use crate::memory::{FoundNote, Note, NoteScope, Remembered};
use crate::scope::{Cancelled, Point};
use crate::store::StoreError;
use crate::tools::ToolOutput;
use crate::tools::arguments::{self, Arguments};

/// Notes in one answer.
const MOST_RECALLED: u64 = 50;

/// Characters of a key.
const LONGEST_KEY: usize = 200;

/// Arguments of `remember`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RememberArgs {
    /// What to remember, in words that will be understood without this conversation.
    text: String,
    /// A short name for it, such as favourite-colour. Remembering the same key again replaces the note. One is made when absent.
    #[serde(default)]
    key: Option<String>,
    /// `session`: known in this conversation only, also when it is made shorter; `agent`: known to you in every conversation, with
    /// whomever. `session` when absent.
    #[serde(default)]
    scope: Option<String>,
}

impl Arguments for RememberArgs {
    const NAME: &'static str = "remember";
    const ABOUT: &'static str = "Writes a note that `recall` finds later.";
    const EXAMPLE: &'static str = r#"{"text": "The user's favourite colour is blue.", "key": "favourite-colour"}"#;
}

/// Arguments of `recall`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RecallArgs {
    /// Words that the note has; the newest notes when empty.
    query: String,
    /// `session` or `agent`; both when absent.
    #[serde(default)]
    scope: Option<String>,
    /// The most notes to answer, 50 at the most.
    #[serde(default)]
    limit: Option<u64>,
}

impl Arguments for RecallArgs {
    const NAME: &'static str = "recall";
    const ABOUT: &'static str =
        "Finds notes that were written with `remember`, and earlier messages where those are kept.";
    const EXAMPLE: &'static str = r#"{"query": "favourite colour"}"#;
}

/// Names of the tools of this file.
pub(super) const NAMES: [&str; 2] = [RememberArgs::NAME, RecallArgs::NAME];

/// The allowed ones of this file's tools as the model sees them.
pub(super) fn memory_specs(allowed: &[String]) -> Vec<ToolSpec> {
    let specs = [arguments::spec::<RememberArgs>(), arguments::spec::<RecallArgs>()];
    let is_allowed = |spec: &ToolSpec| allowed.iter().any(|name| name == "*" || *name == spec.name);
    specs.into_iter().filter(is_allowed).collect()
}

/// Whose notes are meant, in the words of the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Session,
    Agent,
}

impl Whose {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "session" => Ok(Self::Session),
            "agent" => Ok(Self::Agent),
            other => Err(format!("field `scope`: {other:?} is neither `session` nor `agent`. Nothing was done.")),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Agent => "agent",
        }
    }
}

impl Job<'_> {
    /// Calls a tool of this file; none when `tool` is not one.
    pub(super) async fn use_memory(&self, tool: &str, given: &Value) -> Option<Result<ToolOutput, Cancelled>> {
        Some(match tool {
            RememberArgs::NAME => match arguments::parse::<RememberArgs>(given).and_then(|args| self.noted(args)) {
                Ok((whose, note)) => self.remember(whose, note).await,
                Err(problem) => Ok(ToolOutput::error(problem)),
            },
            RecallArgs::NAME => match arguments::parse::<RecallArgs>(given).and_then(|args| self.asked(args)) {
                Ok(asked) => self.recall(asked).await,
                Err(problem) => Ok(ToolOutput::error(problem)),
            },
            _ => return None,
        })
    }

    fn noted(&self, args: RememberArgs) -> Result<(Whose, Note), String> {
        let whose = args.scope.as_deref().map_or(Ok(Whose::Session), Whose::read)?;
        let text = args.text.trim().to_owned();
        if text.is_empty() {
            return Err("The text is empty. Say what is to be remembered.".to_owned());
        }
        let length = text.chars().count();
        if length > LONGEST_SHOWN {
            return Err(format!(
                "The text has {length} characters, a note at most {LONGEST_SHOWN}. Say it in fewer, or in several notes. \
                 Nothing was remembered."
            ));
        }
        let key = args.key.unwrap_or_else(|| key_of(&text));
        if key.trim().is_empty() || key.chars().count() > LONGEST_KEY || key.chars().any(char::is_control) {
            return Err(format!(
                "field `key`: expected a name of 1 to {LONGEST_KEY} characters on one line. Nothing was remembered."
            ));
        }
        let clock = self.pen.clock();
        Ok((whose, Note { key, category: CORE.to_owned(), text, at: clock.rfc3339(clock.now()) }))
    }

    async fn remember(&self, whose: Whose, note: Note) -> Result<ToolOutput, Cancelled> {
        let key = note.key.clone();
        let writing = self.workshop.memory.remember(self.scope_of(whose), note);
        Ok(match self.scope.race(Point::Remember, writing).await? {
            Ok(Remembered::New) => ToolOutput::ok(format!("Remembered of this {} as {key:?}.", whose.word())),
            Ok(Remembered::Replaced) => ToolOutput::ok(format!(
                "Remembered of this {} as {key:?}, in place of what was remembered under that key.",
                whose.word()
            )),
            Ok(Remembered::NoSession | Remembered::Unwanted) => {
                ToolOutput::error("This session was deleted meanwhile, so nothing can be remembered of it.".to_owned())
            }
            Err(error) => ToolOutput::error(format!("It could not be written down: {error}.")),
        })
    }

    fn asked(&self, args: RecallArgs) -> Result<Asked, String> {
        let whose = match args.scope.as_deref() {
            Some(text) => vec![Whose::read(text)?],
            None => vec![Whose::Session, Whose::Agent],
        };
        let usual = u64::try_from(self.workshop.memory.settings().recall_limit).unwrap_or(MOST_RECALLED);
        let limit = args.limit.unwrap_or(usual).clamp(1, MOST_RECALLED);
        Ok(Asked { whose, query: args.query.trim().to_owned(), limit: usize::try_from(limit).unwrap_or_default() })
    }

    async fn recall(&self, asked: Asked) -> Result<ToolOutput, Cancelled> {
        let found = match self.scope.race(Point::Recall, self.found(&asked)).await? {
            Ok(found) => found,
            Err(error) => return Ok(ToolOutput::error(format!("The notes could not be read: {error}."))),
        };
        Ok(ToolOutput::ok(match found {
            Found::NoNotes => none_yet(&asked.whose),
            Found::NoneFits => {
                format!("No note has words of {:?}. With an empty query the newest are listed.", asked.query)
            }
            Found::Notes(lines) => lines.join("\n"),
        }))
    }

    async fn found(&self, asked: &Asked) -> Result<Found, StoreError> {
        let memory = &self.workshop.memory;
        let mut newest = Vec::new();
        for whose in &asked.whose {
            // waits: raced by `recall`, as one with the search.
            let (notes, _) = memory.newest(self.scope_of(*whose), asked.limit, None).await?;
            newest.extend(notes.into_iter().map(|note| line_of(*whose, &note, None)));
        }
        if newest.is_empty() {
            return Ok(Found::NoNotes);
        }
        if asked.query.is_empty() {
            return Ok(Found::Notes(newest));
        }
        let scopes = asked.whose.iter().map(|whose| self.scope_of(*whose)).collect();
        // waits: the same race.
        let found = memory.recall(scopes, &asked.query, asked.limit).await?;
        let mut best: Vec<(Whose, FoundNote)> = Vec::new();
        for (whose, notes) in asked.whose.iter().zip(found) {
            best.extend(notes.into_iter().map(|note| (*whose, note)));
        }
        if best.is_empty() {
            return Ok(Found::NoneFits);
        }
        best.sort_by(|(_, one), (_, other)| other.score.total_cmp(&one.score));
        best.truncate(asked.limit);
        Ok(Found::Notes(best.iter().map(|(whose, found)| line_of(*whose, &found.note, Some(found.score))).collect()))
    }

    fn scope_of(&self, whose: Whose) -> NoteScope {
        match whose {
            Whose::Session => NoteScope::Session(self.pen.run().session.clone()),
            Whose::Agent => NoteScope::Agent(self.agent.id.clone()),
        }
    }
}

struct Asked {
    whose: Vec<Whose>,
    query: String,
    limit: usize,
}

/// What a search came to, for the model.
enum Found {
    /// There is nothing to be found.
    NoNotes,
    /// There are notes, but of other things.
    NoneFits,
    /// One line each, the best or newest first.
    Notes(Vec<String>),
}

fn none_yet(whose: &[Whose]) -> String {
    match whose {
        [Whose::Session] => "This session has no notes yet. `remember` writes one.".to_owned(),
        [Whose::Agent] => "You have no notes of your own yet. `remember` with scope `agent` writes one.".to_owned(),
        _ => "This session has no notes yet, and you have none of your own. `remember` writes one.".to_owned(),
    }
}

fn line_of(whose: Whose, note: &Note, score: Option<f64>) -> String {
    let relevance = score.map(|score| format!(", relevance {score:.2}")).unwrap_or_default();
    format!("- {} ({}, {}, {}{relevance}): {}", note.key, whose.word(), note.category, note.at, note.text)
}
