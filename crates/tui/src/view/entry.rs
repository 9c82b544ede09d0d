//! Rows of one transcript entry.

use quell_client::receipt_line::{amendment_lines, receipt_line};
use quell_client::text_format::format_millis;
use quell_protocol::{CallEnd, Verdict};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

use super::{seconds_text, single_line};
use crate::state::DetailsMode;
use crate::text_layout::{display_width, sanitize, truncate, wrap, wrap_block};
use crate::texts::Texts;
use crate::theme::{DONE_STYLE, FAILURE_STYLE, PLAIN_STYLE, QUIET_STYLE, STOPPED_STYLE, STRONG_STYLE, WAITING_STYLE};
use crate::transcript::{EntryBody, NoticeLevel, TranscriptEntry};
use crate::turn::{
    ChatRunActivity, ChatSubRun, ChatSubRunState, ChatToolCall, ChatTurn, ChatTurnEnd, TextCompleteness, TurnBlock,
};
use crate::unix_millis::UnixMillis;

/// Number of last lines shown of an expanded output.
const MAX_OUTPUT_LINES: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RenderOptions {
    pub(crate) width: usize,
    pub(crate) now: UnixMillis,
    pub(crate) details: DetailsMode,
    pub(crate) texts: Texts,
}

/// Renders the text of one block (index, text, width); the renderer caches its stable part.
pub(crate) type ProseRenderer<'a> = &'a mut dyn FnMut(usize, &str, usize) -> Vec<Line<'static>>;

/// The rows of an entry, with an empty row at the end.
pub(crate) fn entry_rows(
    entry: &TranscriptEntry,
    options: RenderOptions,
    render_prose: ProseRenderer<'_>,
) -> Vec<Line<'static>> {
    let mut rows = match &entry.body {
        EntryBody::UserMessage(text) => user_message_rows(text, options.width),
        EntryBody::Turn(turn) => turn_rows(turn, options, render_prose),
        EntryBody::Remark(remark) => {
            let (mark, style) = match remark.level {
                NoticeLevel::Info => ("· ", QUIET_STYLE),
                NoticeLevel::Failure => ("▲ ", FAILURE_STYLE),
            };
            marked_rows(&sanitize(&remark.text), mark, style, options.width)
        }
        EntryBody::HistoryReset => {
            marked_rows(options.texts.get("term.page.emptied"), "· ", QUIET_STYLE, options.width)
        }
    };
    if !rows.is_empty() {
        rows.push(Line::default());
    }
    rows
}

fn user_message_rows(text: &str, width: usize) -> Vec<Line<'static>> {
    marked_rows(&sanitize(text), "› ", STRONG_STYLE, width)
}

fn marked_rows(text: &str, mark: &'static str, style: Style, width: usize) -> Vec<Line<'static>> {
    wrap_block(text, style, mark, "  ", width)
}

fn turn_rows(turn: &ChatTurn, options: RenderOptions, render_prose: ProseRenderer<'_>) -> Vec<Line<'static>> {
    let mut rows: Vec<Line<'static>> = Vec::new();
    let mut before = None;
    for (at, part) in turn.blocks.iter().enumerate() {
        let is_text = matches!(part, TurnBlock::Text { .. });
        let some = match part {
            TurnBlock::Text { text, partial: TextCompleteness::Complete } => render_prose(at, text, options.width),
            TurnBlock::Text { text, partial } => cut_text_rows(text, *partial, options),
            TurnBlock::Thinking(text) => thinking_rows(text, turn, at, options),
            TurnBlock::Call(call) => call_rows(call, options),
            TurnBlock::Steered(text) => user_message_rows(text, options.width),
            TurnBlock::WebSearch(query) => {
                let note = options.texts.format("term.page.search", &[("query", query)]);
                marked_rows(&note, "· ", QUIET_STYLE, options.width)
            }
            TurnBlock::ModelFallback { from, to } => {
                let note = options.texts.format("term.page.fallback", &[("from", from), ("to", to)]);
                marked_rows(&note, "· ", QUIET_STYLE, options.width)
            }
            TurnBlock::Compacted(turns) => {
                let turns =
                    options.texts.plural("term.page.compacted.one", "term.page.compacted.many", *turns as usize);
                marked_rows(&turns, "· ", QUIET_STYLE, options.width)
            }
        };
        // Separate text from lines of calls.
        if before.is_some_and(|before| before != is_text || is_text) && !some.is_empty() {
            rows.push(Line::default());
        }
        before = if some.is_empty() { before } else { Some(is_text) };
        rows.extend(some);
    }
    rows.extend(turn.sub_runs.iter().map(|below| sub_run_row(below, options)));
    if let Some(end) = &turn.end {
        let ended = end_rows(end, options);
        if !ended.is_empty() && !rows.is_empty() {
            rows.push(Line::default());
        }
        rows.extend(ended);
        if let Some(receipt) = end.receipt.as_ref().filter(|_| turn.has_diffs()) {
            let hint = options.texts.format("term.page.undo", &[("run", receipt.run_id.as_str())]);
            rows.extend(marked_rows(&hint, "· ", QUIET_STYLE, options.width));
        }
    }
    rows
}

fn cut_text_rows(text: &str, partial: TextCompleteness, options: RenderOptions) -> Vec<Line<'static>> {
    let mut rows = wrap_block(&sanitize(text), STOPPED_STYLE, "", "", options.width);
    let key = match partial {
        TextCompleteness::Complete | TextCompleteness::Cut => "term.page.cut",
        TextCompleteness::CutUnseen => "term.page.unseen",
        TextCompleteness::CutKept => "term.page.kept",
    };
    rows.extend(wrap(&[Span::styled(format!("({})", options.texts.get(key)), QUIET_STYLE)], options.width));
    rows
}

fn thinking_rows(text: &str, turn: &ChatTurn, at: usize, options: RenderOptions) -> Vec<Line<'static>> {
    let live = turn.is_live() && turn.activity == ChatRunActivity::Thinking && at + 1 == turn.blocks.len();
    let words = text.split_whitespace().count();
    let key = if live { "term.page.thinking" } else { "term.page.thought" };
    let words = options.texts.plural("term.count.word.one", "term.count.word.many", words);
    let sign = match options.details {
        DetailsMode::Folded => "▸",
        DetailsMode::Open => "▾",
    };
    let head = single_line(&format!("{sign} {} · {words}", options.texts.get(key)), options.width);
    let mut rows = vec![Line::styled(head, QUIET_STYLE)];
    if options.details == DetailsMode::Open {
        rows.extend(wrap_block(sanitize(text).trim_end(), QUIET_STYLE, "│ ", "│ ", options.width));
    }
    rows
}

/// `● shell  cargo test   2.1 s  exit 0`, and below it the output if details are shown.
fn call_rows(call: &ChatToolCall, options: RenderOptions) -> Vec<Line<'static>> {
    let (sign, style) = match call.end {
        None if call.pending_approval.is_some() => ("◔", WAITING_STYLE),
        None if call.waits_for_calls => ("○", QUIET_STYLE),
        // Older histories do not store how a call ended.
        None if call.since.is_none() => ("·", QUIET_STYLE),
        None => ("●", PLAIN_STYLE),
        Some(CallEnd::Ok) => ("✓", DONE_STYLE),
        Some(CallEnd::Error) => ("▲", FAILURE_STYLE),
        Some(CallEnd::Denied) => ("✗", FAILURE_STYLE),
        Some(CallEnd::Stopped) => ("■", STOPPED_STYLE),
        Some(CallEnd::NotStarted) => ("○", STOPPED_STYLE),
    };
    let time = match (call.ms, call.since, call.end) {
        (Some(ms), _, _) => Some(format_millis(ms)),
        (None, Some(since), None) => Some(seconds_text(options.now.millis_since(since))),
        _ => None,
    };
    let tail = time.into_iter().chain(call_end_text(call, options.texts)).chain(call.changed_lines());
    let tail: Vec<String> = tail.collect();
    let tail = tail.join("  ");
    let tool = single_line(&call.tool, options.width / 2);
    let taken = 2 + display_width(&tool) + 2 + if tail.is_empty() { 0 } else { display_width(&tail) + 3 };
    let label = single_line(&call.label, options.width.saturating_sub(taken));
    let mut spans = vec![Span::styled(format!("{sign} "), style), Span::raw(tool)];
    if !label.is_empty() {
        spans.push(Span::styled(format!("  {label}"), QUIET_STYLE));
    }
    if !tail.is_empty() {
        let room = options.width.saturating_sub(spans.iter().map(Span::width).sum::<usize>() + 3);
        spans.push(Span::styled(format!("   {}", truncate(&tail, room)), style.patch(QUIET_STYLE)));
    }
    let mut rows = vec![Line::from(spans)];
    if call.is_plan() {
        rows.extend(plan_rows(call, options));
    } else if options.details == DetailsMode::Open {
        rows.extend(output_rows(call, options));
        rows.extend(diff_rows(call, options));
    }
    rows
}

/// The items of a to-do list, below the line that counts them.
fn plan_rows(call: &ChatToolCall, options: RenderOptions) -> Vec<Line<'static>> {
    let output = sanitize(&call.output);
    let mut rows = Vec::new();
    for item in output.lines().skip(1) {
        let (mark, style, text) = match item.split_once("] ") {
            Some(("[x", text)) => ("  ✓ ", DONE_STYLE, text),
            Some(("[>", text)) => ("  ● ", STRONG_STYLE, text),
            Some((_, text)) => ("  ○ ", QUIET_STYLE, text),
            None => ("    ", QUIET_STYLE, item),
        };
        rows.extend(wrap_block(text, style, mark, "    ", options.width));
    }
    rows
}

/// Added lines are green and removed ones yellow: red belongs to stopping.
fn diff_rows(call: &ChatToolCall, options: RenderOptions) -> Vec<Line<'static>> {
    let diff = sanitize(&call.diff);
    let lines: Vec<&str> = diff.lines().collect();
    let mut rows = Vec::new();
    for line in lines.iter().take(MAX_OUTPUT_LINES) {
        let style = match line.as_bytes() {
            [b'-', b'-', b'-', b' ', ..] | [b'+', b'+', b'+', b' ', ..] => STRONG_STYLE,
            [b'+', ..] => DONE_STYLE,
            [b'-', ..] => FAILURE_STYLE,
            _ => QUIET_STYLE,
        };
        rows.extend(wrap_block(line, style, "  │ ", "  │ ", options.width));
    }
    let hidden = lines.len().saturating_sub(MAX_OUTPUT_LINES);
    if hidden > 0 {
        let below = options.texts.plural("term.page.below.one", "term.page.below.many", hidden);
        rows.extend(wrap_block(&below, QUIET_STYLE, "  │ ", "  │ ", options.width));
    }
    rows
}

/// How a call ended; for a command its exit code, if known.
fn call_end_text(call: &ChatToolCall, texts: Texts) -> Option<String> {
    let code = exit_code(&call.output);
    Some(match call.end {
        None if call.pending_approval.is_some() => texts.get("term.call.asking").to_owned(),
        None if call.waits_for_calls => texts.get("term.call.waiting").to_owned(),
        None if call.since.is_some() => return None,
        None => return code.map(|code| format!("exit {code}")),
        Some(CallEnd::Ok | CallEnd::Error) if code.is_some() => format!("exit {}", code.unwrap_or_default()),
        Some(CallEnd::Ok) => texts.get("term.call.ok").to_owned(),
        Some(CallEnd::Error) => texts.get("term.call.failed").to_owned(),
        Some(CallEnd::Stopped) => texts.get("term.call.stopped").to_owned(),
        Some(CallEnd::NotStarted) => texts.get("term.call.not_started").to_owned(),
        Some(CallEnd::Denied) => texts.get("term.call.denied").to_owned(),
    })
}

/// Exit code in the last line of a command's output: `[exit code 0]`.
fn exit_code(output: &str) -> Option<i32> {
    let verdict = output.lines().next_back()?.strip_prefix("[exit code ")?;
    verdict.split([']', ';']).next()?.parse().ok()
}

fn output_rows(call: &ChatToolCall, options: RenderOptions) -> Vec<Line<'static>> {
    let output_block = |text: &str| wrap_block(text, QUIET_STYLE, "  │ ", "  │ ", options.width);
    let output = sanitize(call.output.trim_end_matches('\n'));
    if output.is_empty() {
        return Vec::new();
    }
    let lines: Vec<&str> = output.split('\n').collect();
    let hidden = lines.len().saturating_sub(MAX_OUTPUT_LINES);
    let mut rows = Vec::new();
    if hidden > 0 {
        let above = options.texts.plural("term.page.above.one", "term.page.above.many", hidden);
        rows.extend(output_block(&above));
    }
    rows.extend(output_block(&lines[hidden..].join("\n")));
    rows
}

fn sub_run_row(below: &ChatSubRun, options: RenderOptions) -> Line<'static> {
    let (style, word) = match &below.state {
        ChatSubRunState::Working(word) => (WAITING_STYLE, word.as_str()),
        ChatSubRunState::InBackground => (QUIET_STYLE, options.texts.get("term.below.goes_on")),
        ChatSubRunState::Stopped => (QUIET_STYLE, options.texts.get("term.call.stopped")),
        ChatSubRunState::Ended(word) => (QUIET_STYLE, word.as_str()),
    };
    let working = matches!(below.state, ChatSubRunState::Working(_));
    let time =
        if working { format!("   {}", seconds_text(options.now.millis_since(below.since))) } else { String::new() };
    let agent = single_line(below.agent.as_str(), options.width / 2);
    let room = options.width.saturating_sub(6 + display_width(&agent) + display_width(&time));
    let state = format!("  {}{time}", single_line(word, room));
    Line::from(vec![Span::styled("  └ ", style), Span::raw(agent), Span::styled(state, QUIET_STYLE)])
}

/// Rows for the end of a turn; none if it completed without leftovers.
fn end_rows(end: &ChatTurnEnd, options: RenderOptions) -> Vec<Line<'static>> {
    let steps = end.completed_steps().map(|(done, cut)| {
        let done = options.texts.plural("term.count.step.one", "term.count.step.many", done as usize);
        if cut { format!("{done}, {}", options.texts.get("term.page.step_cut")) } else { done }
    });
    let receipt = end.receipt.as_ref().map(|receipt| sanitize(&receipt_line(receipt)));
    match &end.verdict {
        Verdict::Completed if !end.has_leftovers() => Vec::new(),
        Verdict::Completed => marked_rows(&receipt.unwrap_or_default(), "▲ ", FAILURE_STYLE, options.width),
        Verdict::Failed { code, message } => {
            let head = options
                .texts
                .format("term.page.failed", &[("code", &single_line(code, 60)), ("why", &sanitize(message))]);
            let mut rows = marked_rows(&head, "▲ ", FAILURE_STYLE, options.width);
            if end.has_leftovers() {
                rows.extend(marked_rows(&receipt.unwrap_or_default(), "▲ ", FAILURE_STYLE, options.width));
            }
            rows
        }
        Verdict::Aborted { .. } => {
            let word = end.error_text().unwrap_or_default();
            let word = if word == "Execution paused" { options.texts.get("term.page.paused").to_owned() } else { word };
            let parts: Vec<String> = [Some(word), steps, receipt].into_iter().flatten().collect();
            let (mark, style) = if end.has_leftovers() { ("▲ ", FAILURE_STYLE) } else { ("■ ", STOPPED_STYLE) };
            let mut rows = marked_rows(&parts.join(" · "), mark, style, options.width);
            for line in end.receipt.iter().flat_map(amendment_lines) {
                rows.extend(marked_rows(&sanitize(&line), "  ", QUIET_STYLE, options.width));
            }
            rows
        }
    }
}
