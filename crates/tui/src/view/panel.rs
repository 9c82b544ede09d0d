//! Rows of menus, completions, approvals and queued messages, shown between the transcript and the input.

use quell_client::text_format::{escalation_lines, time_left, tool_call_lines};
use quell_protocol::mcp::McpListKind;
use ratatui_core::text::{Line, Span};

use super::single_line;
use crate::keys::pattern_to_offer;
use crate::picker::PickerRow;
use crate::slash_commands::COMMANDS;
use crate::state::{ChatApproval, ChatRunState, ChatState, Menu, Picker, PickerList};
use crate::text_layout::{display_width, truncate, wrap_block};
use crate::theme::{CHOSEN_STYLE, PLAIN_STYLE, QUIET_STYLE, STRONG_STYLE, WAITING_STYLE};

const MAX_QUEUED_ROWS: usize = 3;

pub(crate) struct OpenPanel {
    pub(crate) rows: Vec<Line<'static>>,
    /// The row that stays visible when the panel is higher than its space.
    pub(crate) focus_row: Option<usize>,
}

/// The panel that takes the keys, if one is open.
pub(crate) fn open_panel(chat: &ChatState, max_width: usize) -> Option<OpenPanel> {
    match &chat.menu {
        Some(Menu::Help) => return Some(OpenPanel { rows: help_rows(chat, max_width), focus_row: None }),
        Some(Menu::ConfirmLeave) => return Some(OpenPanel { rows: leave_rows(chat, max_width), focus_row: None }),
        Some(Menu::Picker(picker)) => return Some(picker_panel(chat, picker, max_width)),
        None => {}
    }
    let offered = chat.offered_commands();
    if !offered.is_empty() {
        let chosen = chat.completion.chosen.min(offered.len() - 1);
        let row = |(at, known): (usize, &&crate::slash_commands::SlashCommandSpec)| {
            command_row(chat, known, max_width, if at == chosen { ChoiceMark::Chosen } else { ChoiceMark::Other })
        };
        return Some(OpenPanel { rows: offered.iter().enumerate().map(row).collect(), focus_row: Some(chosen) });
    }
    chat.next_approval().map(|asked| OpenPanel { rows: approval_rows(chat, asked, max_width), focus_row: None })
}

/// Messages without an answer and queued messages.
pub(crate) fn queue_rows(chat: &ChatState, max_width: usize) -> Vec<Line<'static>> {
    let waiting: Vec<_> =
        chat.runs.iter().filter(|run| matches!(run.state, ChatRunState::Sending | ChatRunState::Queued)).collect();
    let row = |run: &&crate::state::ChatRun| {
        let key = if run.state == ChatRunState::Sending { "term.queue.sending" } else { "term.queue.waiting" };
        let head = format!("○ {}  ", chat.texts.get(key));
        let text = single_line(&run.text, max_width.saturating_sub(display_width(&head)));
        Line::from(vec![Span::styled(head, WAITING_STYLE), Span::styled(text, QUIET_STYLE)])
    };
    let mut rows = steered_rows(chat, max_width);
    rows.extend(waiting.iter().take(MAX_QUEUED_ROWS).map(row));
    if waiting.len() > MAX_QUEUED_ROWS {
        let more = chat.texts.format("term.queue.more", &[("n", &(waiting.len() - MAX_QUEUED_ROWS).to_string())]);
        rows.push(Line::styled(truncate(&format!("  {more}"), max_width), QUIET_STYLE));
    }
    rows
}

/// Steered messages that a run has not read yet.
fn steered_rows(chat: &ChatState, max_width: usize) -> Vec<Line<'static>> {
    let turns = chat.runs.iter().filter_map(|run| chat.transcript.turn(&run.id));
    let row = |text: &String| {
        let head = format!("○ {}  ", chat.texts.get("term.queue.steered"));
        let text = single_line(text, max_width.saturating_sub(display_width(&head)));
        Line::from(vec![Span::styled(head, WAITING_STYLE), Span::styled(text, QUIET_STYLE)])
    };
    turns.flat_map(|turn| &turn.pending_steered).map(row).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChoiceMark {
    Chosen,
    Other,
}

fn command_row(
    chat: &ChatState,
    known: &crate::slash_commands::SlashCommandSpec,
    max_width: usize,
    mark: ChoiceMark,
) -> Line<'static> {
    let name = format!("{} {}", known.name, known.argument);
    choice_row(&format!("{name:<15}"), chat.texts.get(known.about_key), max_width, mark)
}

/// A row with name, description and a mark for the selected one; colour only repeats the mark.
fn choice_row(name: &str, about: &str, max_width: usize, mark: ChoiceMark) -> Line<'static> {
    let (sign, style) = match mark {
        ChoiceMark::Chosen => ("▸ ", CHOSEN_STYLE),
        ChoiceMark::Other => ("  ", PLAIN_STYLE),
    };
    let name = single_line_with_spaces(name, max_width.saturating_sub(2));
    let room = max_width.saturating_sub(2 + display_width(&name) + 2);
    let about = if room > 8 { single_line(about, room) } else { String::new() };
    Line::from(vec![Span::raw(sign), Span::styled(name, style), Span::styled(format!("  {about}"), QUIET_STYLE)])
}

/// Truncates without removing spaces that indent a tree or fill a column.
fn single_line_with_spaces(text: &str, max_width: usize) -> String {
    truncate(&crate::text_layout::sanitize(text), max_width)
}

fn help_rows(chat: &ChatState, max_width: usize) -> Vec<Line<'static>> {
    const KEYS: [(&str, &str); 12] = [
        ("Enter", "term.help.enter"),
        ("Alt-Enter, Ctrl-J", "term.help.line"),
        ("Esc", "term.help.esc"),
        ("Esc Esc", "term.help.esc_esc"),
        ("Ctrl-C", "term.help.ctrl_c"),
        ("Tab", "term.help.tab"),
        ("Up, Down", "term.help.history"),
        ("PgUp, PgDn, End", "term.help.scroll"),
        ("Ctrl-O", "term.help.output"),
        ("y, s, n", "term.help.approve"),
        ("Ctrl-L", "term.help.redraw"),
        ("Ctrl-D", "term.help.quit"),
    ];
    let mut rows = vec![Line::styled(single_line(chat.texts.get("term.help.title"), max_width), STRONG_STYLE)];
    rows.extend(
        KEYS.map(|(key, about)| choice_row(&format!("{key:<18}"), chat.texts.get(about), max_width, ChoiceMark::Other)),
    );
    rows.push(Line::default());
    rows.extend(COMMANDS.iter().map(|known| command_row(chat, known, max_width, ChoiceMark::Other)));
    rows
}

fn leave_rows(chat: &ChatState, max_width: usize) -> Vec<Line<'static>> {
    if !chat.is_active() {
        return vec![Line::styled(single_line(chat.texts.get("term.leave.idle"), max_width), STRONG_STYLE)];
    }
    let runs = chat.texts.plural("term.count.run.one", "term.count.run.many", chat.runs.len());
    let title = chat.texts.format("term.leave.active", &[("runs", &runs)]);
    let mut rows = vec![Line::styled(single_line(&title, max_width), STRONG_STYLE)];
    for (key, about) in [("s", "term.leave.stop"), ("l", "term.leave.leave"), ("Esc", "term.leave.stay")] {
        rows.push(choice_row(&format!("{key:<4}"), chat.texts.get(about), max_width, ChoiceMark::Other));
    }
    rows
}

fn picker_panel(chat: &ChatState, picker: &Picker, max_width: usize) -> OpenPanel {
    let title = chat.texts.get(match picker.list {
        PickerList::Sessions(_) => "term.pick.sessions",
        PickerList::Runs(_) => "term.pick.runs",
        PickerList::Agents => "term.pick.agents",
        PickerList::Models => "term.pick.models",
        PickerList::Mcp(McpListKind::Prompts, _) => "term.pick.prompts",
        PickerList::Mcp(McpListKind::Resources, _) => "term.pick.resources",
    });
    let filter = if picker.filter.is_empty() { String::new() } else { format!("  / {}", picker.filter) };
    let mut rows = vec![Line::from(vec![
        Span::styled(single_line(title, max_width), STRONG_STYLE),
        Span::styled(single_line_with_spaces(&filter, max_width.saturating_sub(display_width(title))), PLAIN_STYLE),
    ])];
    let Some(lines) = chat.picker_rows(picker) else {
        rows.push(Line::styled(
            single_line(&format!("  {}", chat.texts.get("term.pick.loading")), max_width),
            QUIET_STYLE,
        ));
        return OpenPanel { rows, focus_row: None };
    };
    if lines.is_empty() {
        let key = match picker.list {
            _ if !picker.filter.is_empty() => "term.pick.no_match",
            PickerList::Runs(_) => "term.pick.no_runs",
            PickerList::Sessions(_) => "term.pick.no_sessions",
            PickerList::Agents | PickerList::Models => "term.pick.no_agents",
            PickerList::Mcp(..) => "term.pick.no_mcp",
        };
        rows.push(Line::styled(
            format!("  {}", single_line(chat.texts.get(key), max_width.saturating_sub(2))),
            QUIET_STYLE,
        ));
    }
    let chosen = picker.chosen_index(&lines);
    let widest = lines.iter().map(|line| display_width(&line.name)).max().unwrap_or(0).min(max_width / 2);
    rows.extend(lines.iter().enumerate().map(|(at, line)| {
        picker_row(line, widest, max_width, if Some(at) == chosen { ChoiceMark::Chosen } else { ChoiceMark::Other })
    }));
    OpenPanel { rows, focus_row: Some(chosen.map_or(0, |at| at + 1)) }
}

fn picker_row(line: &PickerRow, widest: usize, max_width: usize, mark: ChoiceMark) -> Line<'static> {
    let name = single_line_with_spaces(&line.name, widest);
    let pad = " ".repeat(widest.saturating_sub(display_width(&name)));
    let sign = if line.live { "● " } else { "" };
    choice_row(&format!("{name}{pad}"), &format!("{sign}{}", line.about), max_width, mark)
}

/// The waiting call in full, so that the whole call can be read before deciding.
fn approval_rows(chat: &ChatState, asked: &ChatApproval, max_width: usize) -> Vec<Line<'static>> {
    let tool = single_line(&asked.row.tool, 60);
    let agent = single_line(asked.row.agent.as_str(), 60);
    let now = i64::try_from(chat.now.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let time = now.and_then(|now| time_left(&asked.row.expires_at, now)).unwrap_or_default();
    let expires = chat.texts.format("term.approval.expires", &[("time", &time)]);
    let more = chat.approvals.iter().filter(|other| !other.answered).count().saturating_sub(1);
    let mut title = match &asked.row.question {
        Some(question) => {
            let server = single_line(&question.server, 60);
            chat.texts.format("term.approval.question", &[("server", &server), ("tool", &tool)])
        }
        None => chat.texts.format("term.approval.title", &[("tool", &tool), ("agent", &agent)]),
    };
    if asked.row.quorum > 1 {
        let (allowed, quorum) = (asked.row.allowed_by.len().to_string(), asked.row.quorum.to_string());
        let text = chat.texts.format("term.approval.quorum", &[("n", &allowed), ("quorum", &quorum)]);
        title = format!("{title} · {text}");
    }
    if more > 0 {
        title = format!("{title} · {}", chat.texts.format("term.approval.more", &[("n", &more.to_string())]));
    }
    let mut rows = vec![Line::styled(single_line(&format!("◔ {title} · {expires}"), max_width), WAITING_STYLE)];
    if asked.row.escalation.is_some() {
        let mark = chat.texts.get("term.approval.outside");
        rows.push(Line::styled(single_line(&format!("  ⚠ {mark}"), max_width), WAITING_STYLE));
    }
    let escalation = asked.row.escalation.iter().flat_map(escalation_lines);
    for line in tool_call_lines(&asked.row.arguments).into_iter().chain(escalation) {
        rows.extend(wrap_block(&line, PLAIN_STYLE, "  ", "    ", max_width));
    }
    if let Some(form) =
        asked.row.question.as_ref().map(|question| question.answer_form()).filter(|form| !form.is_empty())
    {
        let hint = chat.texts.format("term.approval.answer", &[("form", &form)]);
        rows.extend(wrap_block(&hint, WAITING_STYLE, "  ", "    ", max_width));
    }
    let by_pattern = pattern_to_offer(&asked.row).map(|_| chat.texts.get("term.approval.pattern").to_owned());
    let for_session =
        asked.row.may_be_allowed_for_session().then(|| chat.texts.format("term.approval.session", &[("tool", &tool)]));
    for hint in by_pattern.into_iter().chain(for_session).filter(|_| chat.accepts_letter_answer()) {
        rows.extend(wrap_block(&hint, QUIET_STYLE, "  ", "    ", max_width));
    }
    rows
}
