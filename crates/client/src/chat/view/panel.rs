//! What is open between the page and the input: a menu, an approval with its whole call, the commands that complete what is
//! typed, and the messages that wait.

use ratatui::text::{Line, Span};

use super::super::commands::COMMANDS;
use super::super::look::{CHOSEN, PLAIN, QUIET, STRONG, WAITING};
use super::super::pick::Row;
use super::super::state::{Asked, Chat, Menu, PickList, Picker, RunState};
use super::super::text::{block, cut, width};
use super::one;
use crate::words::{call_in_full, until};

/// Rows of waiting messages that are shown.
const MOST_QUEUED: usize = 3;

/// Rows, and which of them has to be seen.
pub(crate) struct Panel {
    pub(crate) rows: Vec<Line<'static>>,
    /// The row around which the panel is shown when it is higher than its place.
    pub(crate) around: Option<usize>,
}

/// What takes the keys now, if anything does.
pub(crate) fn panel(chat: &Chat, most: usize) -> Option<Panel> {
    match &chat.menu {
        Some(Menu::Help) => return Some(Panel { rows: help(chat, most), around: None }),
        Some(Menu::Leave) => return Some(Panel { rows: leave(chat, most), around: None }),
        Some(Menu::Picker(picker)) => return Some(pick(chat, picker, most)),
        None => {}
    }
    let offered = chat.offered();
    if !offered.is_empty() {
        let chosen = chat.completion.chosen.min(offered.len() - 1);
        let row = |(at, known): (usize, &&super::super::commands::Known)| {
            command_row(chat, known, most, if at == chosen { Mark::Chosen } else { Mark::Other })
        };
        return Some(Panel { rows: offered.iter().enumerate().map(row).collect(), around: Some(chosen) });
    }
    chat.approval().map(|asked| Panel { rows: approval(chat, asked, most), around: None })
}

/// Messages that wait for their turn.
pub(crate) fn queue(chat: &Chat, most: usize) -> Vec<Line<'static>> {
    let waiting: Vec<_> =
        chat.runs.iter().filter(|run| matches!(run.state, RunState::Sending | RunState::Queued)).collect();
    let row = |run: &&super::super::state::Run| {
        let key = if run.state == RunState::Sending { "term.queue.sending" } else { "term.queue.waiting" };
        let head = format!("○ {}  ", chat.texts.say(key));
        let text = one(&run.text, most.saturating_sub(width(&head)));
        Line::from(vec![Span::styled(head, WAITING), Span::styled(text, QUIET)])
    };
    let mut rows = handed_over(chat, most);
    rows.extend(waiting.iter().take(MOST_QUEUED).map(row));
    if waiting.len() > MOST_QUEUED {
        let more = chat.texts.fill("term.queue.more", &[("n", &(waiting.len() - MOST_QUEUED).to_string())]);
        rows.push(Line::styled(cut(&format!("  {more}"), most), QUIET));
    }
    rows
}

/// Messages that a run has been given and has not read yet.
fn handed_over(chat: &Chat, most: usize) -> Vec<Line<'static>> {
    let turns = chat.runs.iter().filter_map(|run| chat.transcript.turn(&run.id));
    let row = |text: &String| {
        let head = format!("○ {}  ", chat.texts.say("term.queue.steered"));
        let text = one(text, most.saturating_sub(width(&head)));
        Line::from(vec![Span::styled(head, WAITING), Span::styled(text, QUIET)])
    };
    turns.flat_map(|turn| &turn.steered).map(row).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Chosen,
    Other,
}

fn command_row(chat: &Chat, known: &super::super::commands::Known, most: usize, mark: Mark) -> Line<'static> {
    let name = format!("{} {}", known.name, known.argument);
    choice(&format!("{name:<15}"), chat.texts.say(known.about), most, mark)
}

/// A line of a list: a name, what is to be said about it, and a mark at the chosen one, which colour only repeats.
fn choice(name: &str, about: &str, most: usize, mark: Mark) -> Line<'static> {
    let (sign, style) = match mark {
        Mark::Chosen => ("▸ ", CHOSEN),
        Mark::Other => ("  ", PLAIN),
    };
    let name = one_kept(name, most.saturating_sub(2));
    let room = most.saturating_sub(2 + width(&name) + 2);
    let about = if room > 8 { one(about, room) } else { String::new() };
    Line::from(vec![Span::raw(sign), Span::styled(name, style), Span::styled(format!("  {about}"), QUIET)])
}

/// Cuts without touching the spaces that indent a tree or fill a column.
fn one_kept(text: &str, most: usize) -> String {
    cut(&super::super::text::clean(text), most)
}

fn help(chat: &Chat, most: usize) -> Vec<Line<'static>> {
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
        ("y, n", "term.help.approve"),
        ("Ctrl-L", "term.help.redraw"),
        ("Ctrl-D", "term.help.quit"),
    ];
    let mut rows = vec![Line::styled(one(chat.texts.say("term.help.title"), most), STRONG)];
    rows.extend(KEYS.map(|(key, about)| choice(&format!("{key:<18}"), chat.texts.say(about), most, Mark::Other)));
    rows.push(Line::default());
    rows.extend(COMMANDS.iter().map(|known| command_row(chat, known, most, Mark::Other)));
    rows
}

fn leave(chat: &Chat, most: usize) -> Vec<Line<'static>> {
    if !chat.is_active() {
        return vec![Line::styled(one(chat.texts.say("term.leave.idle"), most), STRONG)];
    }
    let runs = chat.texts.count("term.count.run.one", "term.count.run.many", chat.runs.len());
    let title = chat.texts.fill("term.leave.active", &[("runs", &runs)]);
    let mut rows = vec![Line::styled(one(&title, most), STRONG)];
    for (key, about) in [("s", "term.leave.stop"), ("l", "term.leave.leave"), ("Esc", "term.leave.stay")] {
        rows.push(choice(&format!("{key:<4}"), chat.texts.say(about), most, Mark::Other));
    }
    rows
}

fn pick(chat: &Chat, picker: &Picker, most: usize) -> Panel {
    let title = chat.texts.say(match picker.list {
        PickList::Sessions(_) => "term.pick.sessions",
        PickList::Runs(_) => "term.pick.runs",
        PickList::Agents => "term.pick.agents",
        PickList::Models => "term.pick.models",
    });
    let filter = if picker.filter.is_empty() { String::new() } else { format!("  / {}", picker.filter) };
    let mut rows = vec![Line::from(vec![
        Span::styled(one(title, most), STRONG),
        Span::styled(one_kept(&filter, most.saturating_sub(width(title))), PLAIN),
    ])];
    let Some(lines) = chat.picks(picker) else {
        rows.push(Line::styled(one(&format!("  {}", chat.texts.say("term.pick.loading")), most), QUIET));
        return Panel { rows, around: None };
    };
    if lines.is_empty() {
        let key = match picker.list {
            _ if !picker.filter.is_empty() => "term.pick.no_match",
            PickList::Runs(_) => "term.pick.no_runs",
            PickList::Sessions(_) => "term.pick.no_sessions",
            PickList::Agents | PickList::Models => "term.pick.no_agents",
        };
        rows.push(Line::styled(format!("  {}", one(chat.texts.say(key), most.saturating_sub(2))), QUIET));
    }
    let chosen = picker.place(&lines);
    let widest = lines.iter().map(|line| width(&line.name)).max().unwrap_or(0).min(most / 2);
    rows.extend(
        lines.iter().enumerate().map(|(at, line)| {
            pick_row(line, widest, most, if Some(at) == chosen { Mark::Chosen } else { Mark::Other })
        }),
    );
    Panel { rows, around: Some(chosen.map_or(0, |at| at + 1)) }
}

fn pick_row(line: &Row, widest: usize, most: usize, mark: Mark) -> Line<'static> {
    let name = one_kept(&line.name, widest);
    let pad = " ".repeat(widest.saturating_sub(width(&name)));
    let sign = if line.live { "● " } else { "" };
    choice(&format!("{name}{pad}"), &format!("{sign}{}", line.about), most, mark)
}

/// The call that waits, to its last character: whoever decides has to see all of it.
fn approval(chat: &Chat, asked: &Asked, most: usize) -> Vec<Line<'static>> {
    let tool = one(&asked.row.tool, 60);
    let agent = one(asked.row.agent.as_str(), 60);
    let now = i64::try_from(chat.now.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let time = now.and_then(|now| until(&asked.row.expires_at, now)).unwrap_or_default();
    let expires = chat.texts.fill("term.approval.expires", &[("time", &time)]);
    let more = chat.approvals.iter().filter(|other| !other.answered).count().saturating_sub(1);
    let mut title = chat.texts.fill("term.approval.title", &[("tool", &tool), ("agent", &agent)]);
    if more > 0 {
        title = format!("{title} · {}", chat.texts.fill("term.approval.more", &[("n", &more.to_string())]));
    }
    let mut rows = vec![Line::styled(one(&format!("◔ {title} · {expires}"), most), WAITING)];
    for line in call_in_full(&asked.row.arguments) {
        rows.extend(block(&line, PLAIN, (Span::styled("  ", WAITING), Span::styled("    ", WAITING)), most));
    }
    rows
}
