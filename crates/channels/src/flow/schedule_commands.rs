//! The chat command `/schedules`: the schedules of its sender.

use quell_engine::Engine;
use quell_engine::engine::Caller;
use quell_engine::schedules::ScheduleChangeError;
use quell_kernel::channel::chat_language::ChatLanguage;
use quell_kernel::channel::commands::ScheduleEdit;
use quell_protocol::ErrorCode;
use quell_protocol::api::{AccessLevel, Grants};
use quell_protocol::schedule::{SchedulePatch, ScheduleView};
use quell_store::StoreError;

use super::{command_texts, texts};

/// Most characters that a line shows of a schedule's text.
const MAX_TEXT_CHARS: usize = 80;

/// The schedules of a sender, in the language of the chat. An operator sees no more here, since others read the chat.
pub(super) struct SenderSchedules<'a> {
    engine: &'a Engine,
    sender: Caller,
    language: ChatLanguage,
}

impl<'a> SenderSchedules<'a> {
    pub(super) fn new(engine: &'a Engine, sender: Caller, language: ChatLanguage) -> Self {
        let scope = sender.scope.min(AccessLevel::Write);
        Self { engine, sender: Caller { scope, grants: Grants::NONE, ..sender }, language }
    }

    /// # Cancel safety
    /// Safe: it only reads.
    pub(super) async fn list(&self) -> String {
        match self.engine.list_schedules(&self.sender).await {
            Ok(views) if views.is_empty() => command_texts::NO_SCHEDULES.text(self.language).to_owned(),
            Ok(views) => views.iter().map(|view| self.line(view)).collect::<Vec<_>>().join("\n"),
            Err(error) => self.failure(&error),
        }
    }

    /// # Cancel safety
    /// Safe: the schedule is changed, or not.
    pub(super) async fn edit(&self, edit: ScheduleEdit, id: &str) -> String {
        let patch = |paused| SchedulePatch { paused: Some(paused), ..SchedulePatch::default() };
        let changed = match edit {
            ScheduleEdit::Pause => self.engine.patch_schedule(&self.sender, id, &patch(true)).await,
            ScheduleEdit::Resume => self.engine.patch_schedule(&self.sender, id, &patch(false)).await,
            ScheduleEdit::Remove => {
                return match self.engine.delete_schedule(&self.sender, id).await {
                    Ok(true) => command_texts::SCHEDULE_REMOVED.format(self.language, &[("id", &id)]),
                    Ok(false) => command_texts::SCHEDULE_UNKNOWN.format(self.language, &[("id", &id)]),
                    Err(error) => self.failure(&error),
                };
            }
        };
        match changed {
            Ok(Some(ScheduleView { next_at: Some(next), .. })) => {
                command_texts::SCHEDULE_RESUMED.format(self.language, &[("id", &id), ("next", &next)])
            }
            Ok(Some(_)) => command_texts::SCHEDULE_PAUSED.format(self.language, &[("id", &id)]),
            Ok(None) => command_texts::SCHEDULE_UNKNOWN.format(self.language, &[("id", &id)]),
            Err(ScheduleChangeError::Store(error)) => self.failure(&error),
            Err(ScheduleChangeError::Held) => texts::rejection_text(ErrorCode::Held).text(self.language).to_owned(),
            Err(_) => command_texts::SCHEDULE_OVER.format(self.language, &[("id", &id)]),
        }
    }

    fn line(&self, view: &ScheduleView) -> String {
        let when = [&view.cron, &view.every, &view.at].into_iter().flatten().next().map_or("", String::as_str);
        let text: String = view.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text: String = text.chars().take(MAX_TEXT_CHARS).collect();
        let next = view.next_at.as_deref().unwrap_or_default();
        match (&view.paused, &view.next_at) {
            (Some(_), _) => command_texts::PAUSED_SCHEDULE_LINE.format(
                self.language,
                &[("id", &view.id), ("when", &when), ("timezone", &view.timezone), ("text", &text)],
            ),
            (None, None) => command_texts::ENDED_SCHEDULE_LINE.format(
                self.language,
                &[("id", &view.id), ("when", &when), ("timezone", &view.timezone), ("text", &text)],
            ),
            (None, Some(_)) => command_texts::SCHEDULE_LINE.format(
                self.language,
                &[("id", &view.id), ("when", &when), ("timezone", &view.timezone), ("next", &next), ("text", &text)],
            ),
        }
    }

    fn failure(&self, error: &StoreError) -> String {
        tracing::warn!(principal = %self.sender.principal, %error, "schedules were not read or changed for a chat");
        texts::rejection_text(ErrorCode::StoreUnavailable).text(self.language).to_owned()
    }
}
