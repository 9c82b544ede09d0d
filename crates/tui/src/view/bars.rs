//! Header and footer rows: session, agent, connection, state, key hints.

use quell_protocol::api::OnBusy;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

use super::{seconds_text, single_line, stop_progress, tenths_text};
use crate::state::{ChatRunState, ChatState, DaemonConnectionStatus, Menu, Picker, PickerList};
use crate::text_layout::display_width;
use crate::theme::{
    DONE_STYLE, FAILURE_STYLE, PLAIN_STYLE, QUIET_STYLE, STOPPED_STYLE, STOPPING_STYLE, STRONG_STYLE, WAITING_STYLE,
};
use crate::turn::{ChatRunActivity, ModelRetryWait};

/// Columns between the left and the right part of a bar.
const MIN_GAP: usize = 2;
/// Below this width in columns the footer shows the state alone.
const NARROW_WIDTH: usize = 30;

/// Session, agent and model at the left; hold and connection at the right.
pub(crate) fn header_row(chat: &ChatState, max_width: usize) -> Line<'static> {
    let mut right = Vec::new();
    if chat.hold.held {
        right.push(Span::styled(format!("⚑ {}  ", chat.texts.get("term.header.hold")), FAILURE_STYLE));
    }
    right.push(match &chat.connection {
        DaemonConnectionStatus::Connecting => {
            Span::styled(format!("◔ {}", chat.texts.get("term.header.connecting")), WAITING_STYLE)
        }
        DaemonConnectionStatus::Live => Span::styled(format!("● {}", chat.texts.get("term.header.live")), DONE_STYLE),
        DaemonConnectionStatus::Lost { since, .. } => {
            let time = seconds_text(chat.elapsed_ms(*since));
            Span::styled(format!("▲ {}", chat.texts.format("term.header.lost", &[("time", &time)])), FAILURE_STYLE)
        }
    });
    let room = max_width.saturating_sub(spans_width(&right) + MIN_GAP);
    let session = single_line(chat.session.as_str(), room);
    let facts = [chat.effective_agent().map(ToString::to_string), chat.effective_model().map(str::to_owned)];
    let facts: String = facts.into_iter().flatten().map(|fact| format!(" · {fact}")).collect();
    let facts = single_line(&facts, room.saturating_sub(display_width(&session) + 1));
    let gap = if facts.is_empty() { "" } else { " " };
    justify_row(
        vec![Span::styled(session, STRONG_STYLE), Span::styled(format!("{gap}{facts}"), QUIET_STYLE)],
        right,
        max_width,
    )
}

/// State at the left, keys at the right; keys that do not fit are dropped from the end.
pub(crate) fn footer_row(chat: &ChatState, max_width: usize) -> Line<'static> {
    let (style, state) = state_text(chat);
    let mut keys = key_hints(chat);
    // In a narrow window the state is more important than key hints.
    let least = if max_width < NARROW_WIDTH { 0 } else { keys.first().map_or(0, |key| display_width(key) + MIN_GAP) };
    let state = single_line(&state, max_width.saturating_sub(least));
    while !keys.is_empty() && display_width(&state) + MIN_GAP + display_width(&keys.join(" · ")) > max_width {
        keys.pop();
    }
    justify_row(vec![Span::styled(state, style)], vec![Span::styled(keys.join(" · "), QUIET_STYLE)], max_width)
}

fn spans_width(spans: &[Span<'_>]) -> usize {
    spans.iter().map(Span::width).sum()
}

fn justify_row(mut left: Vec<Span<'static>>, right: Vec<Span<'static>>, max_width: usize) -> Line<'static> {
    let taken = spans_width(&left) + spans_width(&right);
    left.push(Span::raw(" ".repeat(max_width.saturating_sub(taken))));
    left.extend(right);
    Line::from(left)
}

fn state_text(chat: &ChatState) -> (Style, String) {
    if let Some(state) = stopping_text(chat) {
        return state;
    }
    if let DaemonConnectionStatus::Lost { since, .. } = &chat.connection {
        let time = seconds_text(chat.elapsed_ms(*since));
        return (FAILURE_STYLE, format!("▲ {}", chat.texts.format("term.state.lost", &[("time", &time)])));
    }
    if let Some(asked) = chat.next_approval() {
        return (
            WAITING_STYLE,
            format!("◔ {}", chat.texts.format("term.state.approval", &[("tool", &asked.row.tool)])),
        );
    }
    running_text(chat).unwrap_or_else(|| {
        if chat.hold.held {
            (FAILURE_STYLE, format!("⚑ {}", chat.texts.get("term.state.held")))
        } else {
            idle_text(chat)
        }
    })
}

fn idle_text(chat: &ChatState) -> (Style, String) {
    match &chat.connection {
        DaemonConnectionStatus::Connecting => {
            (WAITING_STYLE, format!("◔ {}", chat.texts.get("term.header.connecting")))
        }
        DaemonConnectionStatus::Live | DaemonConnectionStatus::Lost { .. } => {
            (QUIET_STYLE, format!("○ {}", chat.texts.get("term.state.idle")))
        }
    }
}

fn stopping_text(chat: &ChatState) -> Option<(Style, String)> {
    let stop = chat.stop.as_ref()?;
    if stop.problem.is_some() {
        return Some((STOPPING_STYLE, format!("◆ {}", chat.texts.get("term.state.unstopped"))));
    }
    let key = if stop.force { "term.state.forcing" } else { "term.state.stopping" };
    let left = stop_progress::stop_progress_text(stop, chat.texts);
    let colon = if left.is_empty() { "" } else { ": " };
    let time = tenths_text(chat.elapsed_ms(stop.since));
    Some((STOPPING_STYLE, format!("◆ {}{colon}{left} · {time}", chat.texts.get(key))))
}

fn running_text(chat: &ChatState) -> Option<(Style, String)> {
    let queued = chat.runs.iter().filter(|run| run.state == ChatRunState::Queued).count();
    let first = chat.runs.iter().find(|run| matches!(run.state, ChatRunState::Running | ChatRunState::Ending));
    let run = first.or(chat.runs.first())?;
    let text = |key| chat.texts.get(key).to_owned();
    let doing = chat.transcript.turn(&run.id).map(|turn| turn.activity.clone()).unwrap_or_default();
    let (style, sign, doing) = match (run.state, doing) {
        (ChatRunState::Running, ChatRunActivity::Retrying(retry)) => (WAITING_STYLE, "◔", retry_text(chat, &retry)),
        (ChatRunState::Sending, _) => (WAITING_STYLE, "◔", text("term.doing.sending")),
        (ChatRunState::Queued, _) => (WAITING_STYLE, "○", text("term.doing.queued")),
        (_, ChatRunActivity::Starting | ChatRunActivity::WaitingForModel | ChatRunActivity::Retrying(_)) => {
            (WAITING_STYLE, "◔", text("term.doing.waiting"))
        }
        (_, ChatRunActivity::Thinking) => (PLAIN_STYLE, "●", text("term.doing.thinking")),
        (_, ChatRunActivity::Answering) => (PLAIN_STYLE, "●", text("term.doing.answering")),
        (_, ChatRunActivity::Tool(tool)) => (PLAIN_STYLE, "●", single_line(&tool, 30)),
        (_, ChatRunActivity::Approval(tool)) => {
            (WAITING_STYLE, "◔", chat.texts.format("term.state.approval", &[("tool", &tool)]))
        }
        (_, ChatRunActivity::Ending) => (STOPPED_STYLE, "●", text("term.doing.ending")),
    };
    let waiting = match queued {
        0 => String::new(),
        _ if run.state == ChatRunState::Queued => String::new(),
        more => format!(" · {}", chat.texts.format("term.state.queued", &[("n", &more.to_string())])),
    };
    Some((style, format!("{sign} {doing} · {}{waiting}", seconds_text(chat.elapsed_ms(run.since)))))
}

/// Attempts of a model call that fails, and the time until the next one.
fn retry_text(chat: &ChatState, retry: &ModelRetryWait) -> String {
    let (attempts, wait) = (retry.attempts.to_string(), retry.next_attempt_at.millis_since(chat.now));
    if wait == 0 {
        let attempt = (retry.attempt + 1).to_string();
        return chat.texts.format("term.retry.again", &[("attempt", &attempt), ("attempts", &attempts)]);
    }
    let (attempt, time) = (retry.attempt.to_string(), seconds_text(wait.next_multiple_of(1000)));
    let why = retry.reason.as_str();
    chat.texts.format("retry.next", &[("attempt", &attempt), ("attempts", &attempts), ("time", &time), ("why", why)])
}

/// Keys that work now, the most important first.
fn key_hints(chat: &ChatState) -> Vec<&'static str> {
    let keys: &[&'static str] = match &chat.menu {
        Some(Menu::Help) => &["term.key.any_closes"],
        Some(Menu::ConfirmLeave) if chat.is_active() => {
            &["term.key.stop_and_leave", "term.key.leave_running", "term.key.stay"]
        }
        Some(Menu::ConfirmLeave) => &["term.key.leave", "term.key.stay"],
        Some(Menu::Picker(Picker { list: PickerList::Runs(_), .. })) => {
            &["term.key.choose", "term.key.stop_run", "term.key.close"]
        }
        Some(Menu::Picker(_)) => &["term.key.choose", "term.key.close"],
        None if !chat.offered_commands().is_empty() => &["term.key.do", "term.key.complete", "term.key.close"],
        None if chat.accepts_letter_answer() => &["term.key.allow", "term.key.deny", "term.key.stop"],
        None if chat.next_approval().is_some() => &["term.key.approve_command", "term.key.stop"],
        None if chat.is_leaving() => &["term.key.force", "term.key.ask"],
        None if chat.stop.is_some() => stop_key_hints(chat),
        None if chat.is_active() => active_key_hints(chat.busy_policy),
        None => &["term.key.send", "term.key.help", "term.key.quit"],
    };
    keys.iter().map(|key| chat.texts.get(key)).collect()
}

fn stop_key_hints(chat: &ChatState) -> &'static [&'static str] {
    match &chat.stop {
        Some(stop) if stop.force => &["term.key.forced"],
        _ => &["term.key.force"],
    }
}

fn active_key_hints(policy: OnBusy) -> &'static [&'static str] {
    match policy {
        OnBusy::Queue => &["term.key.stop", "term.key.queues", "term.key.policy", "term.key.output", "term.key.help"],
        OnBusy::Steer => &["term.key.stop", "term.key.steers", "term.key.policy", "term.key.output", "term.key.help"],
        OnBusy::Interrupt | OnBusy::Reject => {
            &["term.key.stop", "term.key.interrupts", "term.key.policy", "term.key.output", "term.key.help"]
        }
    }
}
