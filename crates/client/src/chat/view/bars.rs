//! The first and the last row: where we are and who answers; what happens, and the keys that work now.

use quell_protocol::api::OnBusy;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::super::look::{DONE, FAILURE, PLAIN, QUIET, STOPPED, STOPPING, STRONG, WAITING};
use super::super::state::{Chat, Connection, Menu, PickList, Picker, RunState};
use super::super::text::width;
use super::super::turn::{Doing, Retry};
use super::{one, seconds, settling, tenths};

/// Columns kept between the two ends of a bar.
const BETWEEN: usize = 2;
/// Below this there is no room for two things in a row.
const NARROW: usize = 30;

/// Session, agent and model; hold and connection at the right.
pub(crate) fn header(chat: &Chat, most: usize) -> Line<'static> {
    let mut right = Vec::new();
    if chat.hold.held {
        right.push(Span::styled(format!("⚑ {}  ", chat.texts.say("term.header.hold")), FAILURE));
    }
    right.push(match &chat.connection {
        Connection::Connecting => Span::styled(format!("◔ {}", chat.texts.say("term.header.connecting")), WAITING),
        Connection::Live => Span::styled(format!("● {}", chat.texts.say("term.header.live")), DONE),
        Connection::Lost { since, .. } => {
            let time = seconds(chat.ago(*since));
            Span::styled(format!("▲ {}", chat.texts.fill("term.header.lost", &[("time", &time)])), FAILURE)
        }
    });
    let room = most.saturating_sub(spans_width(&right) + BETWEEN);
    let session = one(chat.session.as_str(), room);
    let facts = [chat.agent_in_force().map(ToString::to_string), chat.model_in_force().map(str::to_owned)];
    let facts: String = facts.into_iter().flatten().map(|fact| format!(" · {fact}")).collect();
    let facts = one(&facts, room.saturating_sub(width(&session) + 1));
    let gap = if facts.is_empty() { "" } else { " " };
    ends(vec![Span::styled(session, STRONG), Span::styled(format!("{gap}{facts}"), QUIET)], right, most)
}

/// State at the left, keys at the right; when there is no room for all keys, the last ones go.
pub(crate) fn footer(chat: &Chat, most: usize) -> Line<'static> {
    let (style, state) = state(chat);
    let mut keys = keys(chat);
    // In a narrow window the state is worth more than a reminder of a key.
    let least = if most < NARROW { 0 } else { keys.first().map_or(0, |key| width(key) + BETWEEN) };
    let state = one(&state, most.saturating_sub(least));
    while !keys.is_empty() && width(&state) + BETWEEN + width(&keys.join(" · ")) > most {
        keys.pop();
    }
    ends(vec![Span::styled(state, style)], vec![Span::styled(keys.join(" · "), QUIET)], most)
}

fn spans_width(spans: &[Span<'_>]) -> usize {
    spans.iter().map(Span::width).sum()
}

fn ends(mut left: Vec<Span<'static>>, right: Vec<Span<'static>>, most: usize) -> Line<'static> {
    let taken = spans_width(&left) + spans_width(&right);
    left.push(Span::raw(" ".repeat(most.saturating_sub(taken))));
    left.extend(right);
    Line::from(left)
}

fn state(chat: &Chat) -> (Style, String) {
    if let Some(state) = stopping(chat) {
        return state;
    }
    if let Connection::Lost { since, .. } = &chat.connection {
        let time = seconds(chat.ago(*since));
        return (FAILURE, format!("▲ {}", chat.texts.fill("term.state.lost", &[("time", &time)])));
    }
    if let Some(asked) = chat.approval() {
        return (WAITING, format!("◔ {}", chat.texts.fill("term.state.approval", &[("tool", &asked.row.tool)])));
    }
    running(chat).unwrap_or_else(|| {
        if chat.hold.held { (FAILURE, format!("⚑ {}", chat.texts.say("term.state.held"))) } else { idle(chat) }
    })
}

fn idle(chat: &Chat) -> (Style, String) {
    match &chat.connection {
        Connection::Connecting => (WAITING, format!("◔ {}", chat.texts.say("term.header.connecting"))),
        Connection::Live | Connection::Lost { .. } => (QUIET, format!("○ {}", chat.texts.say("term.state.idle"))),
    }
}

fn stopping(chat: &Chat) -> Option<(Style, String)> {
    let stop = chat.stop.as_ref()?;
    if stop.problem.is_some() {
        return Some((STOPPING, format!("◆ {}", chat.texts.say("term.state.unstopped"))));
    }
    let key = if stop.force { "term.state.forcing" } else { "term.state.stopping" };
    let left = settling::words(stop, chat.texts);
    let colon = if left.is_empty() { "" } else { ": " };
    let time = tenths(chat.ago(stop.since));
    Some((STOPPING, format!("◆ {}{colon}{left} · {time}", chat.texts.say(key))))
}

fn running(chat: &Chat) -> Option<(Style, String)> {
    let queued = chat.runs.iter().filter(|run| run.state == RunState::Queued).count();
    let first = chat.runs.iter().find(|run| matches!(run.state, RunState::Running | RunState::Ending));
    let run = first.or(chat.runs.first())?;
    let say = |key| chat.texts.say(key).to_owned();
    let doing = chat.transcript.turn(&run.id).map(|turn| turn.doing.clone()).unwrap_or_default();
    let (style, sign, doing) = match (run.state, doing) {
        (RunState::Running, Doing::Retrying(retry)) => (WAITING, "◔", retry_words(chat, &retry)),
        (RunState::Sending, _) => (WAITING, "◔", say("term.doing.sending")),
        (RunState::Queued, _) => (WAITING, "○", say("term.doing.queued")),
        (_, Doing::Starting | Doing::Waiting | Doing::Retrying(_)) => (WAITING, "◔", say("term.doing.waiting")),
        (_, Doing::Thinking) => (PLAIN, "●", say("term.doing.thinking")),
        (_, Doing::Answering) => (PLAIN, "●", say("term.doing.answering")),
        (_, Doing::Tool(tool)) => (PLAIN, "●", one(&tool, 30)),
        (_, Doing::Approval(tool)) => (WAITING, "◔", chat.texts.fill("term.state.approval", &[("tool", &tool)])),
        (_, Doing::Ending) => (STOPPED, "●", say("term.doing.ending")),
    };
    let waiting = match queued {
        0 => String::new(),
        _ if run.state == RunState::Queued => String::new(),
        more => format!(" · {}", chat.texts.fill("term.state.queued", &[("n", &more.to_string())])),
    };
    Some((style, format!("{sign} {doing} · {}{waiting}", seconds(chat.ago(run.since)))))
}

/// How far a model call is that does not get through.
fn retry_words(chat: &Chat, retry: &Retry) -> String {
    let (attempts, wait) = (retry.attempts.to_string(), retry.next.since(chat.now));
    if wait == 0 {
        let attempt = (retry.attempt + 1).to_string();
        return chat.texts.fill("term.retry.again", &[("attempt", &attempt), ("attempts", &attempts)]);
    }
    let (attempt, time) = (retry.attempt.to_string(), seconds(wait.next_multiple_of(1000)));
    let why = retry.why.as_str();
    chat.texts.fill("retry.next", &[("attempt", &attempt), ("attempts", &attempts), ("time", &time), ("why", why)])
}

/// The keys that work now, the most wanted first.
fn keys(chat: &Chat) -> Vec<&'static str> {
    let keys: &[&'static str] = match &chat.menu {
        Some(Menu::Help) => &["term.key.any_closes"],
        Some(Menu::Leave) if chat.is_active() => {
            &["term.key.stop_and_leave", "term.key.leave_running", "term.key.stay"]
        }
        Some(Menu::Leave) => &["term.key.leave", "term.key.stay"],
        Some(Menu::Picker(Picker { list: PickList::Runs(_), .. })) => {
            &["term.key.choose", "term.key.stop_run", "term.key.close"]
        }
        Some(Menu::Picker(_)) => &["term.key.choose", "term.key.close"],
        None if !chat.offered().is_empty() => &["term.key.do", "term.key.complete", "term.key.close"],
        None if chat.answers_by_letter() => &["term.key.allow", "term.key.deny", "term.key.stop"],
        None if chat.approval().is_some() => &["term.key.approve_command", "term.key.stop"],
        None if chat.is_leaving() => &["term.key.force", "term.key.ask"],
        None if chat.stop.is_some() => stop_keys(chat),
        None if chat.is_active() => active_keys(chat.policy),
        None => &["term.key.send", "term.key.help", "term.key.quit"],
    };
    keys.iter().map(|key| chat.texts.say(key)).collect()
}

fn stop_keys(chat: &Chat) -> &'static [&'static str] {
    match &chat.stop {
        Some(stop) if stop.force => &["term.key.forced"],
        _ => &["term.key.force"],
    }
}

fn active_keys(policy: OnBusy) -> &'static [&'static str] {
    match policy {
        OnBusy::Queue => &["term.key.stop", "term.key.queues", "term.key.policy", "term.key.output", "term.key.help"],
        OnBusy::Steer => &["term.key.stop", "term.key.steers", "term.key.policy", "term.key.output", "term.key.help"],
        OnBusy::Interrupt | OnBusy::Reject => {
            &["term.key.stop", "term.key.interrupts", "term.key.policy", "term.key.output", "term.key.help"]
        }
    }
}
