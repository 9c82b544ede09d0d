//! Puts the rows on the screen: which part of the page is seen, and what has been rendered before. It decides nothing that
//! anybody but the eye would notice.

use std::collections::HashMap;
use std::rc::Rc;

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::text::Line;
use ratatui::widgets::Widget;

use super::effects::Scroll;
use super::look::QUIET;
use super::markdown;
use super::state::Chat;
use super::transcript::{Body, Entry, EntryId, Transcript};
use super::view::entry::{self, Ground};
use super::view::{bars, input, notice, panel};

/// Pictures of entries that are kept; more would be more than several screens.
const MOST_KEPT: usize = 400;

/// What is kept from one picture to the next.
#[derive(Default)]
pub(crate) struct Painter {
    kept: HashMap<EntryId, Kept>,
    prose: HashMap<(EntryId, usize), Closed>,
    /// The top row of the page; nothing while the page follows its end.
    top: Option<Place>,
    moves: Vec<Scroll>,
    panel_from: usize,
    saw_top: bool,
}

/// A row of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    entry: EntryId,
    row: usize,
}

/// A picture of an entry.
struct Kept {
    version: u64,
    ground: Ground,
    rows: Rc<Vec<Line<'static>>>,
}

/// The beginning of a text that streams, which cannot change any more.
struct Closed {
    bytes: usize,
    width: usize,
    rows: Vec<Line<'static>>,
}

impl Painter {
    pub(super) fn scroll(&mut self, scroll: Scroll) {
        self.moves.push(scroll);
    }

    /// True when the last picture showed the oldest row of the page.
    pub(super) fn saw_top(&self) -> bool {
        self.saw_top
    }

    /// Paints everything, and says where the cursor stands; nowhere while a menu takes the keys.
    pub(crate) fn paint(&mut self, chat: &Chat, buffer: &mut Buffer) -> Option<Position> {
        let area = buffer.area;
        let wide = usize::from(area.width);
        let mut rest = usize::from(area.height);
        if wide == 0 || rest == 0 {
            return None;
        }
        // The input comes first: whatever the size, there is a place to type and to see that something is being stopped.
        let typed = input::lay_out(chat, wide, (rest / 3).max(1));
        let footer = take(&mut rest, 1);
        let typed_high = take(&mut rest, typed.rows.len());
        let header = take(&mut rest, 1);
        let rule = if rest > 3 { take(&mut rest, 1) } else { 0 };
        let said = chat.notice.as_ref().map_or(0, |_| if rest > 1 { take(&mut rest, 1) } else { 0 });
        let opened = panel::panel(chat, wide);
        let spare = if rest > 6 { 3 } else { 0 };
        let room = rest.saturating_sub(spare);
        let opened = self.window(opened, room);
        rest -= opened.len();
        let mut queue = panel::queue(chat, wide);
        queue.truncate(rest.saturating_sub(spare.min(1)));
        rest -= queue.len();
        let page = self.page(chat, wide, rest);

        let mut pen = Pen { buffer, row: area.y, area };
        pen.lines(&[bars::header(chat, wide)], header);
        pen.lines(&page, rest);
        pen.lines(&queue, queue.len());
        if let Some(said) = chat.notice.as_ref().filter(|_| said > 0).map(|said| notice(said, wide)) {
            pen.lines(&[said], 1);
        }
        pen.lines(&opened, opened.len());
        pen.lines(&[Line::styled("─".repeat(wide), QUIET)], rule);
        let at = pen.row;
        pen.lines(&typed.rows, typed_high);
        pen.lines(&[bars::footer(chat, wide)], footer);
        if chat.menu.is_some() || typed_high == 0 {
            return None;
        }
        let (row, column) = typed.cursor;
        let (row, column) = (u16::try_from(row).unwrap_or(0), u16::try_from(column).unwrap_or(0));
        let x = area.x + column.min(area.width.saturating_sub(1));
        Some(Position::new(x, at + row.min(area.height.saturating_sub(1))))
    }

    /// The part of a panel that there is room for; the rest is counted in its last row.
    fn window(&mut self, panel: Option<panel::Panel>, room: usize) -> Vec<Line<'static>> {
        let Some(panel) = panel else {
            self.panel_from = 0;
            return Vec::new();
        };
        let most = panel.rows.len().saturating_sub(room);
        let moved = std::mem::take(&mut self.moves);
        for scroll in &moved {
            match scroll {
                Scroll::PageDown | Scroll::LineDown => self.panel_from = (self.panel_from + room.max(2) / 2).min(most),
                Scroll::PageUp | Scroll::LineUp => self.panel_from = self.panel_from.saturating_sub(room.max(2) / 2),
                Scroll::Bottom => self.panel_from = most,
            }
        }
        if most == 0 {
            // All of it is seen: the moves were meant for the page.
            self.moves = moved;
        }
        self.panel_from = match panel.around {
            Some(row) => row.saturating_sub(room / 2).min(most),
            None => self.panel_from.min(most),
        };
        let last = most - self.panel_from;
        let mut rows: Vec<Line<'static>> = panel.rows.into_iter().skip(self.panel_from).take(room).collect();
        if last > 0
            && panel.around.is_none()
            && let Some(row) = rows.last_mut()
        {
            *row = Line::styled(format!("  ↓ {} · PgDn", last + 1), super::look::WAITING);
        }
        rows
    }

    /// The rows of the page that are seen.
    fn page(&mut self, chat: &Chat, wide: usize, high: usize) -> Vec<Line<'static>> {
        let ground = Ground { width: wide, now: chat.now, details: chat.details(), texts: chat.texts };
        if self.kept.len() > MOST_KEPT {
            self.kept.clear();
            self.prose.clear();
        }
        let transcript = &chat.transcript;
        if transcript.len() == 0 || high == 0 {
            self.moves.clear();
            self.saw_top = transcript.len() == 0;
            return empty(chat, wide, high);
        }
        if self.top.is_some_and(|top| transcript.place_of(top.entry).is_none()) {
            self.top = None;
        }
        for scroll in std::mem::take(&mut self.moves) {
            self.move_by(scroll, transcript, ground, high);
        }
        let (rows, top) = match self.top {
            Some(top) => {
                let rows = self.from(top, transcript, ground, high);
                if rows.len() < high { self.last(transcript, ground, high) } else { (rows, top) }
            }
            None => self.last(transcript, ground, high),
        };
        self.saw_top = top.row == 0 && transcript.place_of(top.entry) == Some(0);
        rows
    }

    fn move_by(&mut self, scroll: Scroll, transcript: &Transcript, ground: Ground, high: usize) {
        let page = high.saturating_sub(2).max(1);
        let lines = match scroll {
            Scroll::Bottom => {
                self.top = None;
                return;
            }
            Scroll::PageUp | Scroll::PageDown => page,
            Scroll::LineUp | Scroll::LineDown => 1,
        };
        let top = self.top.unwrap_or_else(|| self.last(transcript, ground, high).1);
        self.top = match scroll {
            Scroll::PageUp | Scroll::LineUp => Some(self.above(top, lines, transcript, ground)),
            Scroll::PageDown | Scroll::LineDown | Scroll::Bottom => {
                let below = self.below(top, lines, transcript, ground);
                // At the end the page follows again.
                (self.from(below, transcript, ground, high + 1).len() > high).then_some(below)
            }
        };
    }

    fn above(&mut self, from: Place, lines: usize, transcript: &Transcript, ground: Ground) -> Place {
        let mut place = from;
        let mut left = lines;
        while left > place.row {
            let Some(before) = transcript.place_of(place.entry).and_then(|at| transcript.get(at.checked_sub(1)?))
            else {
                return Place { row: 0, ..place };
            };
            left -= place.row;
            place = Place { entry: before.id, row: self.rows(before, ground).len() };
        }
        Place { row: place.row - left, ..place }
    }

    fn below(&mut self, from: Place, lines: usize, transcript: &Transcript, ground: Ground) -> Place {
        let mut place = from;
        let mut left = lines;
        while let Some(at) = transcript.place_of(place.entry) {
            let Some(entry) = transcript.get(at) else { break };
            let high = self.rows(entry, ground).len();
            if place.row + left < high {
                return Place { row: place.row + left, ..place };
            }
            let Some(next) = transcript.get(at + 1) else { break };
            left -= high - place.row;
            place = Place { entry: next.id, row: 0 };
        }
        place
    }

    /// Rows from a place on.
    fn from(&mut self, top: Place, transcript: &Transcript, ground: Ground, high: usize) -> Vec<Line<'static>> {
        let mut rows = Vec::new();
        let Some(first) = transcript.place_of(top.entry) else { return rows };
        let mut skip = top.row;
        for at in first..transcript.len() {
            let Some(entry) = transcript.get(at) else { break };
            rows.extend(self.rows(entry, ground).iter().skip(skip).take(high - rows.len()).cloned());
            skip = 0;
            if rows.len() >= high {
                break;
            }
        }
        rows
    }

    /// The last rows, and where they begin.
    fn last(&mut self, transcript: &Transcript, ground: Ground, high: usize) -> (Vec<Line<'static>>, Place) {
        let mut pieces: Vec<(EntryId, Rc<Vec<Line<'static>>>)> = Vec::new();
        let mut found = 0;
        for at in (0..transcript.len()).rev() {
            let Some(entry) = transcript.get(at) else { break };
            let rows = self.rows(entry, ground);
            found += rows.len();
            pieces.push((entry.id, rows));
            // An empty turn has no rows; the place must name one that has.
            if found >= high {
                break;
            }
        }
        let over = found.saturating_sub(high);
        let top =
            pieces.last().map_or(Place { entry: EntryId(0), row: 0 }, |(entry, _)| Place { entry: *entry, row: over });
        let rows = pieces.iter().rev().flat_map(|(_, rows)| rows.iter()).skip(over).cloned().collect();
        self.top = None;
        (rows, top)
    }

    /// The rows of an entry, made anew only when something of it changed.
    fn rows(&mut self, entry: &Entry, ground: Ground) -> Rc<Vec<Line<'static>>> {
        let live = matches!(&entry.body, Body::Turn(turn) if turn.is_live());
        let ground = if live { ground } else { Ground { now: super::clock::Moment::default(), ..ground } };
        if let Some(kept) =
            self.kept.get(&entry.id).filter(|kept| kept.version == entry.version && kept.ground == ground)
        {
            return Rc::clone(&kept.rows);
        }
        let prose = &mut self.prose;
        let mut render = |block: usize, text: &str, width: usize| match live {
            true => grown(prose, (entry.id, block), text, width),
            false => markdown::render(text, width),
        };
        let rows = Rc::new(entry::rows(entry, ground, &mut render));
        if !live {
            self.prose.retain(|(id, _), _| *id != entry.id);
        }
        self.kept.insert(entry.id, Kept { version: entry.version, ground, rows: Rc::clone(&rows) });
        rows
    }
}

/// Renders a text that grows: only what may still change is rendered again.
fn grown(
    prose: &mut HashMap<(EntryId, usize), Closed>,
    key: (EntryId, usize),
    text: &str,
    width: usize,
) -> Vec<Line<'static>> {
    let kept = prose.entry(key).or_insert_with(|| Closed { bytes: 0, width, rows: Vec::new() });
    if kept.width != width || kept.bytes > text.len() || !text.is_char_boundary(kept.bytes) {
        *kept = Closed { bytes: 0, width, rows: Vec::new() };
    }
    let closed = markdown::closed_until(&text[kept.bytes..]);
    if closed > 0 {
        append(&mut kept.rows, markdown::render(&text[kept.bytes..kept.bytes + closed], width));
        kept.bytes += closed;
    }
    let mut rows = kept.rows.clone();
    append(&mut rows, markdown::render(&text[kept.bytes..], width));
    rows
}

/// Blocks of Markdown stand an empty row apart.
fn append(rows: &mut Vec<Line<'static>>, more: Vec<Line<'static>>) {
    if !rows.is_empty() && !more.is_empty() {
        rows.push(Line::default());
    }
    rows.extend(more);
}

/// What stands on a page without anything: the one next thing to do.
fn empty(chat: &Chat, wide: usize, high: usize) -> Vec<Line<'static>> {
    if chat.facts.exists || high < 2 {
        return Vec::new();
    }
    let text = chat.texts.say("term.page.empty");
    let rows = super::text::wrap(&[ratatui::text::Span::styled(text, QUIET)], wide);
    std::iter::once(Line::default()).chain(rows).take(high).collect()
}

fn take(rest: &mut usize, wanted: usize) -> usize {
    let taken = wanted.min(*rest);
    *rest -= taken;
    taken
}

/// Writes rows one below the other.
struct Pen<'a> {
    buffer: &'a mut Buffer,
    row: u16,
    area: Rect,
}

impl Pen<'_> {
    /// Writes `high` rows, empty ones where there are no more lines.
    fn lines(&mut self, lines: &[Line<'static>], high: usize) {
        for at in 0..high {
            if self.row >= self.area.bottom() {
                return;
            }
            if let Some(line) = lines.get(at) {
                let place = Rect { x: self.area.x, y: self.row, width: self.area.width, height: 1 };
                line.render(place, self.buffer);
            }
            self.row += 1;
        }
    }
}

#[cfg(test)]
mod tests;
