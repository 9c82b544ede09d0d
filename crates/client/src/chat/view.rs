//! What the chat looks like. Each part is a function from the state to rows; [`super::painter`] puts them on the screen.

pub(super) mod bars;
pub(super) mod entry;
pub(super) mod input;
pub(super) mod panel;
pub(super) mod settling;

use ratatui::text::Line;

use super::act::STOP_TEXT;
use super::clock::Moment;
use super::state::{Chat, Connection, Notice, Run, RunState};
use super::text::cut;
use crate::words::{millis, one_line};

/// A length of time for a screen that is painted once a second: `12 s`, `2 min 5 s`.
pub(super) fn seconds(ms: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "this is for reading")]
    let whole = (ms / 1000 * 1000) as f64;
    if ms < 1000 { "0 s".into() } else { millis(whole) }
}

/// A length of time for a screen that follows it: `0.3 s`.
pub(super) fn tenths(ms: u64) -> String {
    if ms < 10_000 { format!("{}.{} s", ms / 1000, ms % 1000 / 100) } else { seconds(ms) }
}

/// Something foreign in one line of at most `most` columns.
pub(super) fn one(text: &str, most: usize) -> String {
    let clean = super::text::clean(&one_line(text, 1000));
    cut(&clean, most)
}

/// The word about what was just done, if it still stands.
pub(super) fn notice(notice: &Notice, most: usize) -> Line<'static> {
    use super::look::{FAILURE, QUIET};
    use super::transcript::Tone;
    match notice.tone {
        Tone::Quiet => Line::styled(one(&format!("· {}", notice.text), most), QUIET),
        Tone::Failure => Line::styled(one(&format!("▲ {}", notice.text), most), FAILURE),
    }
}

impl Chat {
    /// True while something on the screen says how long it has lasted.
    pub(crate) fn shows_time(&self) -> bool {
        self.is_active() || matches!(self.connection, Connection::Lost { .. }) || self.approval().is_some()
    }

    /// True while something is being stopped: the screen follows closely.
    pub(crate) fn counts_down(&self) -> bool {
        self.stop.is_some()
    }

    /// How long ago something was.
    pub(super) fn ago(&self, since: Moment) -> u64 {
        self.now.since(since)
    }

    /// What is said when the chat is left: how to come back, and what goes on.
    pub(crate) fn farewell(&self) -> Vec<String> {
        let session = self.session().as_str();
        let quoted = shell_word(session);
        let mut lines = Vec::new();
        if self.has_session() {
            lines.push(self.texts.fill("term.left.back", &[("command", &format!("quell chat --session {quoted}"))]));
        }
        let (sending, taken): (Vec<&Run>, Vec<&Run>) = self.runs.iter().partition(|run| run.state == RunState::Sending);
        if !taken.is_empty() {
            let runs = self.texts.count("term.count.run.one", "term.count.run.many", taken.len());
            let command = format!("quell stop --session {quoted}");
            lines.push(self.texts.fill("term.left.goes_on", &[("runs", &runs), ("command", &command)]));
        }
        let elsewhere = self.left_behind.iter().map(|left| left.text.as_str());
        let texts = elsewhere.chain(sending.iter().map(|run| run.text.as_str())).filter(|text| *text != STOP_TEXT);
        self.add_texts("term.left.perhaps_unsent", texts.collect(), &mut lines);
        let withdrawn = self.stop.iter().flat_map(|stop| &stop.unreturned).map(|(_, text)| text.as_str());
        let typed = Some(self.composer.text()).filter(|text| !text.trim().is_empty());
        self.add_texts("term.left.unsent", withdrawn.chain(typed).collect(), &mut lines);
        lines
    }

    fn add_texts(&self, head: &'static str, texts: Vec<&str>, lines: &mut Vec<String>) {
        if !texts.is_empty() {
            lines.push(self.texts.say(head).to_owned());
            lines.extend(texts.into_iter().map(crate::words::harmless));
        }
    }
}

/// A word as a shell takes it.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_' | '.' | '/' | '@' | '%');
    if text.chars().all(plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests;
