//! Build the rows of each part of the screen from the chat state; [`crate::renderer`] puts them on the screen.

pub(crate) mod bars;
pub(crate) mod entry;
pub(crate) mod input;
pub(crate) mod panel;
pub(crate) mod stop_progress;

use quell_client::text_format::{format_millis, one_line};
use ratatui_core::text::Line;

use crate::state::{ChatRun, ChatRunState, ChatState, DaemonConnectionStatus, StatusNotice};
use crate::text_layout::truncate;
use crate::unix_millis::UnixMillis;
use crate::user_actions::STOP_TEXT;

/// A duration for a screen that is repainted once a second: `12 s`, `2 min 5 s`.
pub(crate) fn seconds_text(ms: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "display only")]
    let whole = (ms / 1000 * 1000) as f64;
    if ms < 1000 { "0 s".into() } else { format_millis(whole) }
}

/// A duration for a screen that is repainted ten times a second: `0.3 s`.
pub(crate) fn tenths_text(ms: u64) -> String {
    if ms < 10_000 { format!("{}.{} s", ms / 1000, ms % 1000 / 100) } else { seconds_text(ms) }
}

/// Foreign text in one line of at most `max_width` columns.
pub(crate) fn single_line(text: &str, max_width: usize) -> String {
    truncate(&one_line(text, 1000), max_width)
}

pub(crate) fn notice_row(notice: &StatusNotice, max_width: usize) -> Line<'static> {
    use crate::theme::{FAILURE_STYLE, QUIET_STYLE};
    use crate::transcript::NoticeLevel;
    match notice.level {
        NoticeLevel::Info => Line::styled(single_line(&format!("· {}", notice.text), max_width), QUIET_STYLE),
        NoticeLevel::Failure => Line::styled(single_line(&format!("▲ {}", notice.text), max_width), FAILURE_STYLE),
    }
}

impl ChatState {
    /// True while the screen shows an elapsed time.
    pub(crate) fn shows_time(&self) -> bool {
        self.is_active()
            || matches!(self.connection, DaemonConnectionStatus::Lost { .. })
            || self.next_approval().is_some()
    }

    /// True while something is being stopped.
    pub(crate) fn repaints_fast(&self) -> bool {
        self.stop.is_some()
    }

    pub(crate) fn elapsed_ms(&self, since: UnixMillis) -> u64 {
        self.now.millis_since(since)
    }

    /// Lines printed on exit: how to resume, what continues, and unsent text.
    pub(crate) fn exit_messages(&self) -> Vec<String> {
        let session = self.session().as_str();
        let quoted = shell_quote(session);
        let mut lines = Vec::new();
        if self.has_session() {
            lines.push(self.texts.format("term.left.back", &[("command", &format!("quell chat --session {quoted}"))]));
        }
        let (sending, accepted): (Vec<&ChatRun>, Vec<&ChatRun>) =
            self.runs.iter().partition(|run| run.state == ChatRunState::Sending);
        if !accepted.is_empty() {
            let runs = self.texts.plural("term.count.run.one", "term.count.run.many", accepted.len());
            let command = format!("quell stop --session {quoted}");
            lines.push(self.texts.format("term.left.goes_on", &[("runs", &runs), ("command", &command)]));
        }
        let elsewhere = self.detached_sends.iter().map(|left| left.text.as_str());
        let texts = elsewhere.chain(sending.iter().map(|run| run.text.as_str())).filter(|text| *text != STOP_TEXT);
        self.add_lost_texts("term.left.perhaps_unsent", texts.collect(), &mut lines);
        let withdrawn = self.stop.iter().flat_map(|stop| &stop.withdrawn_texts).map(|(_, text)| text.as_str());
        let typed = Some(self.composer.text()).filter(|text| !text.trim().is_empty());
        self.add_lost_texts("term.left.unsent", withdrawn.chain(typed).collect(), &mut lines);
        lines
    }

    fn add_lost_texts(&self, head: &'static str, texts: Vec<&str>, lines: &mut Vec<String>) {
        if !texts.is_empty() {
            lines.push(self.texts.get(head).to_owned());
            lines.extend(texts.into_iter().map(quell_client::text_format::strip_terminal_controls));
        }
    }
}

fn shell_quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_' | '.' | '/' | '@' | '%');
    if text.chars().all(plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests;
