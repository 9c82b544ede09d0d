//! The `remember` tool: write a note of the session or of the agent.

use quell_kernel::memory::{CATEGORY_CORE, MAX_SHOWN_CHARS, generate_note_key};
use quell_scope::{Cancelled, Point};
use quell_tools::{ToolArguments, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{AgentLoop, RunTool};
use crate::memory::{Note, NoteScope, SaveNoteOutcome};

const MAX_KEY_CHARS: usize = 200;
/// What a model should know, and can tell its user, where notes do not come by themselves.
const NOT_RECALLED: &str =
    " It comes back only by `recall`: the automatic memory is off here (`auto_recall` under [memory] in quell.toml).";

#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RememberArgs {
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

/// Owner of a note, as named in the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoteOwner {
    Session,
    Agent,
}

impl NoteOwner {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "session" => Ok(Self::Session),
            "agent" => Ok(Self::Agent),
            other => Err(format!("field `scope`: {other:?} is neither `session` nor `agent`. Nothing was done.")),
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Agent => "agent",
        }
    }

    /// The scope of its notes, as seen from a run.
    pub(super) fn note_scope(self, run: &AgentLoop<'_>) -> NoteScope {
        match self {
            Self::Session => NoteScope::Session(run.writer.run().session.clone()),
            Self::Agent => NoteScope::Agent(run.agent.id.clone()),
        }
    }
}

impl RunTool for RememberArgs {
    async fn call(self, run: &AgentLoop<'_>) -> Result<ToolOutput, Cancelled> {
        match self.build_note(run) {
            Ok((owner, note)) => save_note(run, owner, note).await,
            Err(problem) => Ok(ToolOutput::error(problem)),
        }
    }
}

impl RememberArgs {
    fn build_note(self, run: &AgentLoop<'_>) -> Result<(NoteOwner, Note), String> {
        let owner = self.scope.as_deref().map_or(Ok(NoteOwner::Session), NoteOwner::parse)?;
        let text = self.text.trim().to_owned();
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
        let key = self.key.unwrap_or_else(|| generate_note_key(&text));
        if key.trim().is_empty() || key.chars().count() > MAX_KEY_CHARS || key.chars().any(char::is_control) {
            return Err(format!(
                "field `key`: expected a name of 1 to {MAX_KEY_CHARS} characters on one line. Nothing was remembered."
            ));
        }
        let clock = run.writer.clock();
        Ok((owner, Note { key, category: CATEGORY_CORE.to_owned(), text, at: clock.rfc3339(clock.now()) }))
    }
}

async fn save_note(run: &AgentLoop<'_>, owner: NoteOwner, note: Note) -> Result<ToolOutput, Cancelled> {
    let key = note.key.clone();
    let save = run.services.memory.notes().save(owner.note_scope(run), note);
    Ok(match run.scope.race(Point::Remember, save).await? {
        Ok(SaveNoteOutcome::New) => {
            let hint = if run.services.memory.settings().auto_recall { "" } else { NOT_RECALLED };
            ToolOutput::ok(format!("Remembered of this {} as {key:?}.{hint}", owner.as_str()))
        }
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
