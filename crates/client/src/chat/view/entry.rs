//! Rows of one thing on the page: a message, a turn with its calls, a remark.

use quell_protocol::{CallEnd, Verdict};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::super::clock::Moment;
use super::super::look::{DONE, FAILURE, PLAIN, QUIET, STOPPED, STRONG, WAITING};
use super::super::state::Details;
use super::super::text::{block, clean, cut, width, wrap};
use super::super::texts::Texts;
use super::super::transcript::{Body, Entry, Tone};
use super::super::turn::{Below, BelowState, Block, Call, Doing, End, Partial, Turn};
use super::{one, seconds};
use crate::words::millis;

/// Unfolded output shows this many of its last lines.
const MOST_OUTPUT_LINES: usize = 200;

/// What rows are made with besides the thing itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ground {
    pub(crate) width: usize,
    pub(crate) now: Moment,
    pub(crate) details: Details,
    pub(crate) texts: Texts,
}

/// A way to render the text of a turn's block; the painter keeps what cannot change any more.
pub(crate) type Prose<'a> = &'a mut dyn FnMut(usize, &str, usize) -> Vec<Line<'static>>;

/// The rows of an entry, with an empty one at the end.
pub(crate) fn rows(entry: &Entry, ground: Ground, prose: Prose<'_>) -> Vec<Line<'static>> {
    let mut rows = match &entry.body {
        Body::Said(text) => said(text, ground),
        Body::Turn(turn) => turn_rows(turn, ground, prose),
        Body::Remark(remark) => {
            let (mark, style) = match remark.tone {
                Tone::Quiet => ("· ", QUIET),
                Tone::Failure => ("▲ ", FAILURE),
            };
            marked(&clean(&remark.text), mark, style, ground.width)
        }
        Body::Emptied => marked(ground.texts.say("term.page.emptied"), "· ", QUIET, ground.width),
    };
    if !rows.is_empty() {
        rows.push(Line::default());
    }
    rows
}

fn said(text: &str, ground: Ground) -> Vec<Line<'static>> {
    block(&clean(text), STRONG, (Span::styled("› ", STRONG), Span::raw("  ")), ground.width)
}

fn marked(text: &str, mark: &'static str, style: Style, width: usize) -> Vec<Line<'static>> {
    block(text, style, (Span::styled(mark, style), Span::raw("  ")), width)
}

fn turn_rows(turn: &Turn, ground: Ground, prose: Prose<'_>) -> Vec<Line<'static>> {
    let mut rows: Vec<Line<'static>> = Vec::new();
    let mut before = None;
    for (at, part) in turn.blocks.iter().enumerate() {
        let is_text = matches!(part, Block::Text { .. });
        let some = match part {
            Block::Text { text, partial: Partial::No } => prose(at, text, ground.width),
            Block::Text { text, partial } => cut_off(text, *partial, ground),
            Block::Thinking(text) => thinking(text, turn, at, ground),
            Block::Call(call) => call_rows(call, ground),
            Block::Steered(text) => {
                block(&clean(text), STRONG, (Span::styled("› ", STRONG), Span::raw("  ")), ground.width)
            }
            Block::Compacted(turns) => {
                let turns = ground.texts.count("term.page.compacted.one", "term.page.compacted.many", *turns as usize);
                marked(&turns, "· ", QUIET, ground.width)
            }
        };
        // Text and lines of calls stand apart.
        if before.is_some_and(|before| before != is_text || is_text) && !some.is_empty() {
            rows.push(Line::default());
        }
        before = if some.is_empty() { before } else { Some(is_text) };
        rows.extend(some);
    }
    rows.extend(turn.below.iter().map(|below| below_row(below, ground)));
    if let Some(end) = &turn.end {
        let ended = end_rows(end, ground);
        if !ended.is_empty() && !rows.is_empty() {
            rows.push(Line::default());
        }
        rows.extend(ended);
    }
    rows
}

fn cut_off(text: &str, partial: Partial, ground: Ground) -> Vec<Line<'static>> {
    let mut rows = block(&clean(text), STOPPED, (Span::raw(""), Span::raw("")), ground.width);
    let key = match partial {
        Partial::No | Partial::Cut => "term.page.cut",
        Partial::Unseen => "term.page.unseen",
        Partial::Kept => "term.page.kept",
    };
    rows.extend(wrap(&[Span::styled(format!("({})", ground.texts.say(key)), QUIET)], ground.width));
    rows
}

fn thinking(text: &str, turn: &Turn, at: usize, ground: Ground) -> Vec<Line<'static>> {
    let live = turn.is_live() && turn.doing == Doing::Thinking && at + 1 == turn.blocks.len();
    let words = text.split_whitespace().count();
    let key = if live { "term.page.thinking" } else { "term.page.thought" };
    let words = ground.texts.count("term.count.word.one", "term.count.word.many", words);
    let sign = match ground.details {
        Details::Folded => "▸",
        Details::Open => "▾",
    };
    let head = one(&format!("{sign} {} · {words}", ground.texts.say(key)), ground.width);
    let mut rows = vec![Line::styled(head, QUIET)];
    if ground.details == Details::Open {
        rows.extend(block(
            clean(text).trim_end(),
            QUIET,
            (Span::styled("│ ", QUIET), Span::styled("│ ", QUIET)),
            ground.width,
        ));
    }
    rows
}

/// `● shell  cargo test   2.1 s  exit 0`, and the output below it when it is unfolded.
fn call_rows(call: &Call, ground: Ground) -> Vec<Line<'static>> {
    let (sign, style) = match call.end {
        None if call.asking.is_some() => ("◔", WAITING),
        // Older histories do not say how a call ended.
        None if call.since.is_none() => ("·", QUIET),
        None => ("●", PLAIN),
        Some(CallEnd::Ok) => ("✓", DONE),
        Some(CallEnd::Error) => ("▲", FAILURE),
        Some(CallEnd::Denied) => ("✗", FAILURE),
        Some(CallEnd::Stopped) => ("■", STOPPED),
        Some(CallEnd::NotStarted) => ("○", STOPPED),
    };
    let time = match (call.ms, call.since, call.end) {
        (Some(ms), _, _) => Some(millis(ms)),
        (None, Some(since), None) => Some(seconds(ground.now.since(since))),
        _ => None,
    };
    let tail: Vec<String> = time.into_iter().chain(end_word(call, ground.texts)).collect();
    let tail = tail.join("  ");
    let tool = one(&call.tool, ground.width / 2);
    let taken = 2 + width(&tool) + 2 + if tail.is_empty() { 0 } else { width(&tail) + 3 };
    let label = one(&call.label, ground.width.saturating_sub(taken));
    let mut spans = vec![Span::styled(format!("{sign} "), style), Span::raw(tool)];
    if !label.is_empty() {
        spans.push(Span::styled(format!("  {label}"), QUIET));
    }
    if !tail.is_empty() {
        let room = ground.width.saturating_sub(spans.iter().map(Span::width).sum::<usize>() + 3);
        spans.push(Span::styled(format!("   {}", cut(&tail, room)), style.patch(QUIET)));
    }
    let mut rows = vec![Line::from(spans)];
    if ground.details == Details::Open {
        rows.extend(output_rows(call, ground));
    }
    rows
}

/// How a call ended: the exit of a command where it says so.
fn end_word(call: &Call, texts: Texts) -> Option<String> {
    let code = exit_code(&call.output);
    Some(match call.end {
        None if call.asking.is_some() => texts.say("term.call.asking").to_owned(),
        None if call.since.is_some() => return None,
        None => return code.map(|code| format!("exit {code}")),
        Some(CallEnd::Ok | CallEnd::Error) if code.is_some() => format!("exit {}", code.unwrap_or_default()),
        Some(CallEnd::Ok) => texts.say("term.call.ok").to_owned(),
        Some(CallEnd::Error) => texts.say("term.call.failed").to_owned(),
        Some(CallEnd::Stopped) => texts.say("term.call.stopped").to_owned(),
        Some(CallEnd::NotStarted) => texts.say("term.call.not_started").to_owned(),
        Some(CallEnd::Denied) => texts.say("term.call.denied").to_owned(),
    })
}

/// The exit code in what the model reads of a command: `[exit code 0]` in its last line.
fn exit_code(output: &str) -> Option<i32> {
    let verdict = output.lines().next_back()?.strip_prefix("[exit code ")?;
    verdict.split([']', ';']).next()?.parse().ok()
}

fn output_rows(call: &Call, ground: Ground) -> Vec<Line<'static>> {
    let margin = || (Span::styled("  │ ", QUIET), Span::styled("  │ ", QUIET));
    let output = clean(call.output.trim_end_matches('\n'));
    if output.is_empty() {
        return Vec::new();
    }
    let lines: Vec<&str> = output.split('\n').collect();
    let hidden = lines.len().saturating_sub(MOST_OUTPUT_LINES);
    let mut rows = Vec::new();
    if hidden > 0 {
        let above = ground.texts.count("term.page.above.one", "term.page.above.many", hidden);
        rows.extend(block(&above, QUIET, margin(), ground.width));
    }
    rows.extend(block(&lines[hidden..].join("\n"), QUIET, margin(), ground.width));
    rows
}

fn below_row(below: &Below, ground: Ground) -> Line<'static> {
    let (style, word) = match &below.state {
        BelowState::Working(word) => (WAITING, word.as_str()),
        BelowState::Behind => (QUIET, ground.texts.say("term.below.goes_on")),
        BelowState::Stopped => (QUIET, ground.texts.say("term.call.stopped")),
        BelowState::Over(word) => (QUIET, word.as_str()),
    };
    let working = matches!(below.state, BelowState::Working(_));
    let time = if working { format!("   {}", seconds(ground.now.since(below.since))) } else { String::new() };
    let agent = one(below.agent.as_str(), ground.width / 2);
    let room = ground.width.saturating_sub(6 + width(&agent) + width(&time));
    let state = format!("  {}{time}", one(word, room));
    Line::from(vec![Span::styled("  └ ", style), Span::raw(agent), Span::styled(state, QUIET)])
}

/// The end of a turn: nothing for one that completed and left nothing over.
fn end_rows(end: &End, ground: Ground) -> Vec<Line<'static>> {
    let steps = end.steps_done().map(|(done, cut)| {
        let done = ground.texts.count("term.count.step.one", "term.count.step.many", done as usize);
        if cut { format!("{done}, {}", ground.texts.say("term.page.step_cut")) } else { done }
    });
    let receipt = end.receipt.as_deref().map(clean);
    match &end.verdict {
        Verdict::Completed if !end.leftovers => Vec::new(),
        Verdict::Completed => marked(&receipt.unwrap_or_default(), "▲ ", FAILURE, ground.width),
        Verdict::Failed { code, message } => {
            let head = ground.texts.fill("term.page.failed", &[("code", &one(code, 60)), ("why", &clean(message))]);
            let mut rows = marked(&head, "▲ ", FAILURE, ground.width);
            if end.leftovers {
                rows.extend(marked(&receipt.unwrap_or_default(), "▲ ", FAILURE, ground.width));
            }
            rows
        }
        Verdict::Aborted { .. } => {
            let word = end.word().unwrap_or_default();
            let word = if word == "Execution paused" { ground.texts.say("term.page.paused").to_owned() } else { word };
            let parts: Vec<String> = [Some(word), steps, receipt].into_iter().flatten().collect();
            let (mark, style) = if end.leftovers { ("▲ ", FAILURE) } else { ("■ ", STOPPED) };
            let mut rows = marked(&parts.join(" · "), mark, style, ground.width);
            rows.extend(end.amended.iter().flat_map(|line| marked(&clean(line), "  ", QUIET, ground.width)));
            rows
        }
    }
}
