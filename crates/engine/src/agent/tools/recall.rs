//! The `recall` tool: search the notes of the session and of the agent.

use quell_kernel::call_batch::CallConcurrency;
use quell_scope::{Cancelled, Point};
use quell_store::StoreError;
use quell_tools::{ToolArguments, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;

use super::remember::NoteOwner;
use super::{AgentLoop, RunTool};
use crate::memory::{FoundNote, Note};

const MAX_RECALLED_NOTES: u64 = 50;

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RecallArgs {
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
    const CONCURRENCY: CallConcurrency = CallConcurrency::Concurrent;
}

impl RunTool for RecallArgs {
    async fn call(self, run: &AgentLoop<'_>) -> Result<ToolOutput, Cancelled> {
        match self.build_query(run) {
            Ok(query) => recall_notes(run, query).await,
            Err(problem) => Ok(ToolOutput::error(problem)),
        }
    }
}

impl RecallArgs {
    fn build_query(self, run: &AgentLoop<'_>) -> Result<RecallQuery, String> {
        let owners = match self.scope.as_deref() {
            Some(text) => vec![NoteOwner::parse(text)?],
            None => vec![NoteOwner::Session, NoteOwner::Agent],
        };
        let default_limit = u64::try_from(run.services.memory.settings().recall_limit).unwrap_or(MAX_RECALLED_NOTES);
        let limit = self.limit.unwrap_or(default_limit).clamp(1, MAX_RECALLED_NOTES);
        Ok(RecallQuery {
            owners,
            text: self.query.trim().to_owned(),
            limit: usize::try_from(limit).unwrap_or_default(),
        })
    }
}

async fn recall_notes(run: &AgentLoop<'_>, query: RecallQuery) -> Result<ToolOutput, Cancelled> {
    let outcome = match run.scope.race(Point::Recall, search_notes(run, &query)).await? {
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

async fn search_notes(run: &AgentLoop<'_>, query: &RecallQuery) -> Result<RecallOutcome, StoreError> {
    let memory = &run.services.memory;
    let mut newest = Vec::new();
    for owner in &query.owners {
        // waits: raced by `recall_notes`, together with the search.
        let (notes, _) = memory.notes().list(owner.note_scope(run), query.limit, None).await?;
        newest.extend(notes.into_iter().map(|note| format_note_line(*owner, &note, None)));
    }
    if newest.is_empty() {
        return Ok(RecallOutcome::NoNotes);
    }
    if query.text.is_empty() {
        return Ok(RecallOutcome::Notes(newest));
    }
    let scopes = query.owners.iter().map(|owner| owner.note_scope(run)).collect();
    // waits: the same race.
    let matches = memory.notes().search(scopes, &query.text, query.limit).await?;
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

struct RecallQuery {
    owners: Vec<NoteOwner>,
    text: String,
    limit: usize,
}

/// Outcome of a search, for the model.
enum RecallOutcome {
    NoNotes,
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
