//! Render the visible part of the chat into a buffer, with cached rows and a scroll position. Nothing here affects the
//! state machine, except the report that the top is visible.

use std::collections::HashMap;
use std::rc::Rc;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Position, Rect};
use ratatui_core::text::Line;
use ratatui_core::widgets::Widget;

use crate::effects::Scroll;
use crate::markdown;
use crate::state::ChatState;
use crate::theme::QUIET_STYLE;
use crate::transcript::{ChatTranscript, EntryBody, EntryId, TranscriptEntry};
use crate::view::entry::{self, RenderOptions};
use crate::view::{bars, input, notice_row, panel};

/// Rendered entries that are kept; more than several screens show.
const MAX_CACHED_ENTRIES: usize = 400;

#[derive(Default)]
pub(crate) struct ChatRenderer {
    cached_entries: HashMap<EntryId, CachedEntryRows>,
    cached_prose: HashMap<(EntryId, usize), CachedProseRows>,
    /// First visible row; none while the view follows the end.
    top_position: Option<ScrollPosition>,
    pending_scrolls: Vec<Scroll>,
    panel_offset: usize,
    showed_top: bool,
}

/// The transcript with the options of this frame.
#[derive(Clone, Copy)]
struct PageView<'a> {
    transcript: &'a ChatTranscript,
    options: RenderOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScrollPosition {
    entry: EntryId,
    row: usize,
}

struct CachedEntryRows {
    version: u64,
    options: RenderOptions,
    rows: Rc<Vec<Line<'static>>>,
}

/// Rows of the stable beginning of a streaming text.
#[derive(Default)]
struct CachedProseRows {
    bytes: usize,
    width: usize,
    rows: Vec<Line<'static>>,
}

impl ChatRenderer {
    pub(crate) fn queue_scroll(&mut self, scroll: Scroll) {
        self.pending_scrolls.push(scroll);
    }

    /// True when the last frame showed the oldest row of the transcript.
    pub(crate) fn showed_top(&self) -> bool {
        self.showed_top
    }

    /// Renders everything and returns the position of the cursor; none while a menu takes the keys.
    pub(crate) fn render_frame(&mut self, chat: &ChatState, buffer: &mut Buffer) -> Option<Position> {
        let area = buffer.area;
        let width = usize::from(area.width);
        let mut rest = usize::from(area.height);
        if width == 0 || rest == 0 {
            return None;
        }
        // The input comes first: at any size there is a place to type and to see that something is being stopped.
        let typed = input::layout_input(chat, width, (rest / 3).max(1));
        let footer = reserve_rows(&mut rest, 1);
        let typed_high = reserve_rows(&mut rest, typed.rows.len());
        let header = reserve_rows(&mut rest, 1);
        let rule = if rest > 3 { reserve_rows(&mut rest, 1) } else { 0 };
        let said = chat.notice.as_ref().map_or(0, |_| if rest > 1 { reserve_rows(&mut rest, 1) } else { 0 });
        let opened = panel::open_panel(chat, width);
        let spare = if rest > 6 { 3 } else { 0 };
        let room = rest.saturating_sub(spare);
        let opened = self.visible_panel_rows(opened, room);
        rest -= opened.len();
        let mut queue = panel::queue_rows(chat, width);
        queue.truncate(rest.saturating_sub(spare.min(1)));
        rest -= queue.len();
        let page = self.visible_page_rows(chat, width, rest);

        let mut writer = ScreenRowWriter { buffer, row: area.y, area };
        writer.write_rows(&[bars::header_row(chat, width)], header);
        writer.write_rows(&page, rest);
        writer.write_rows(&queue, queue.len());
        if let Some(said) = chat.notice.as_ref().filter(|_| said > 0).map(|said| notice_row(said, width)) {
            writer.write_rows(&[said], 1);
        }
        writer.write_rows(&opened, opened.len());
        writer.write_rows(&[Line::styled("─".repeat(width), QUIET_STYLE)], rule);
        let at = writer.row;
        writer.write_rows(&typed.rows, typed_high);
        writer.write_rows(&[bars::footer_row(chat, width)], footer);
        if chat.menu.is_some() || typed_high == 0 {
            return None;
        }
        let (row, column) = typed.cursor;
        let (row, column) = (u16::try_from(row).unwrap_or(0), u16::try_from(column).unwrap_or(0));
        let x = area.x + column.min(area.width.saturating_sub(1));
        Some(Position::new(x, at + row.min(area.height.saturating_sub(1))))
    }

    /// The rows of a panel that fit; the last row shows the number of hidden ones.
    fn visible_panel_rows(&mut self, panel: Option<panel::OpenPanel>, room: usize) -> Vec<Line<'static>> {
        let Some(panel) = panel else {
            self.panel_offset = 0;
            return Vec::new();
        };
        let most = panel.rows.len().saturating_sub(room);
        let moved = std::mem::take(&mut self.pending_scrolls);
        for scroll in &moved {
            match scroll {
                Scroll::PageDown | Scroll::LineDown => {
                    self.panel_offset = (self.panel_offset + room.max(2) / 2).min(most)
                }
                Scroll::PageUp | Scroll::LineUp => {
                    self.panel_offset = self.panel_offset.saturating_sub(room.max(2) / 2)
                }
                Scroll::Bottom => self.panel_offset = most,
            }
        }
        if most == 0 {
            // The whole panel is visible: the scrolling is for the transcript.
            self.pending_scrolls = moved;
        }
        self.panel_offset = match panel.focus_row {
            Some(row) => row.saturating_sub(room / 2).min(most),
            None => self.panel_offset.min(most),
        };
        let last = most - self.panel_offset;
        let mut rows: Vec<Line<'static>> = panel.rows.into_iter().skip(self.panel_offset).take(room).collect();
        if last > 0
            && panel.focus_row.is_none()
            && let Some(row) = rows.last_mut()
        {
            *row = Line::styled(format!("  ↓ {} · PgDn", last + 1), crate::theme::WAITING_STYLE);
        }
        rows
    }

    fn visible_page_rows(&mut self, chat: &ChatState, width: usize, height: usize) -> Vec<Line<'static>> {
        let options = RenderOptions { width, now: chat.now, details: chat.details(), texts: chat.texts };
        if self.cached_entries.len() > MAX_CACHED_ENTRIES {
            self.cached_entries.clear();
            self.cached_prose.clear();
        }
        let transcript = &chat.transcript;
        let page = PageView { transcript, options };
        if transcript.len() == 0 || height == 0 {
            self.pending_scrolls.clear();
            self.showed_top = transcript.len() == 0;
            return empty_page_rows(chat, width, height);
        }
        if self.top_position.is_some_and(|top| transcript.index_of(top.entry).is_none()) {
            self.top_position = None;
        }
        for scroll in std::mem::take(&mut self.pending_scrolls) {
            self.apply_scroll(scroll, page, height);
        }
        let (rows, top) = match self.top_position {
            Some(top) => {
                let rows = self.rows_from(top, page, height);
                if rows.len() < height { self.last_rows(page, height) } else { (rows, top) }
            }
            None => self.last_rows(page, height),
        };
        self.showed_top = top.row == 0 && transcript.index_of(top.entry) == Some(0);
        rows
    }

    fn apply_scroll(&mut self, scroll: Scroll, page: PageView<'_>, height: usize) {
        let page_lines = height.saturating_sub(2).max(1);
        let lines = match scroll {
            Scroll::Bottom => {
                self.top_position = None;
                return;
            }
            Scroll::PageUp | Scroll::PageDown => page_lines,
            Scroll::LineUp | Scroll::LineDown => 1,
        };
        let top = self.top_position.unwrap_or_else(|| self.last_rows(page, height).1);
        self.top_position = match scroll {
            Scroll::PageUp | Scroll::LineUp => Some(self.position_above(top, lines, page)),
            Scroll::PageDown | Scroll::LineDown | Scroll::Bottom => {
                let below = self.position_below(top, lines, page);
                // At the end the view follows new rows again.
                (self.rows_from(below, page, height + 1).len() > height).then_some(below)
            }
        };
    }

    fn position_above(&mut self, from: ScrollPosition, lines: usize, page: PageView<'_>) -> ScrollPosition {
        let mut place = from;
        let mut left = lines;
        while left > place.row {
            let Some(before) =
                page.transcript.index_of(place.entry).and_then(|at| page.transcript.get(at.checked_sub(1)?))
            else {
                return ScrollPosition { row: 0, ..place };
            };
            left -= place.row;
            place = ScrollPosition { entry: before.id, row: self.cached_rows(before, page.options).len() };
        }
        ScrollPosition { row: place.row - left, ..place }
    }

    fn position_below(&mut self, from: ScrollPosition, lines: usize, page: PageView<'_>) -> ScrollPosition {
        let mut place = from;
        let mut left = lines;
        while let Some(at) = page.transcript.index_of(place.entry) {
            let Some(entry) = page.transcript.get(at) else { break };
            let height = self.cached_rows(entry, page.options).len();
            if place.row + left < height {
                return ScrollPosition { row: place.row + left, ..place };
            }
            let Some(next) = page.transcript.get(at + 1) else { break };
            left -= height - place.row;
            place = ScrollPosition { entry: next.id, row: 0 };
        }
        place
    }

    fn rows_from(&mut self, top: ScrollPosition, page: PageView<'_>, height: usize) -> Vec<Line<'static>> {
        let mut rows = Vec::new();
        let Some(first) = page.transcript.index_of(top.entry) else { return rows };
        let mut skip = top.row;
        for at in first..page.transcript.len() {
            let Some(entry) = page.transcript.get(at) else { break };
            rows.extend(self.cached_rows(entry, page.options).iter().skip(skip).take(height - rows.len()).cloned());
            skip = 0;
            if rows.len() >= height {
                break;
            }
        }
        rows
    }

    /// The last rows, and the position of the first of them.
    fn last_rows(&mut self, page: PageView<'_>, height: usize) -> (Vec<Line<'static>>, ScrollPosition) {
        let mut pieces: Vec<(EntryId, Rc<Vec<Line<'static>>>)> = Vec::new();
        let mut found = 0;
        for at in (0..page.transcript.len()).rev() {
            let Some(entry) = page.transcript.get(at) else { break };
            let rows = self.cached_rows(entry, page.options);
            found += rows.len();
            pieces.push((entry.id, rows));
            // An empty turn has no rows; the position must name an entry that has.
            if found >= height {
                break;
            }
        }
        let over = found.saturating_sub(height);
        let top = pieces.last().map_or(ScrollPosition { entry: EntryId(0), row: 0 }, |(entry, _)| ScrollPosition {
            entry: *entry,
            row: over,
        });
        let rows = pieces.iter().rev().flat_map(|(_, rows)| rows.iter()).skip(over).cloned().collect();
        self.top_position = None;
        (rows, top)
    }

    /// The rows of an entry, rendered again only after a change.
    fn cached_rows(&mut self, entry: &TranscriptEntry, options: RenderOptions) -> Rc<Vec<Line<'static>>> {
        let live = matches!(&entry.body, EntryBody::Turn(turn) if turn.is_live());
        let options =
            if live { options } else { RenderOptions { now: crate::unix_millis::UnixMillis::default(), ..options } };
        if let Some(kept) =
            self.cached_entries.get(&entry.id).filter(|kept| kept.version == entry.version && kept.options == options)
        {
            return Rc::clone(&kept.rows);
        }
        let prose = &mut self.cached_prose;
        let mut render = |block: usize, text: &str, width: usize| match live {
            true => prose.entry((entry.id, block)).or_default().render(text, width),
            false => markdown::render(text, width),
        };
        let rows = Rc::new(entry::entry_rows(entry, options, &mut render));
        if !live {
            self.cached_prose.retain(|(id, _), _| *id != entry.id);
        }
        self.cached_entries
            .insert(entry.id, CachedEntryRows { version: entry.version, options, rows: Rc::clone(&rows) });
        rows
    }
}

impl CachedProseRows {
    /// Renders a growing text; only the part that may still change is rendered again.
    fn render(&mut self, text: &str, width: usize) -> Vec<Line<'static>> {
        if self.width != width || self.bytes > text.len() || !text.is_char_boundary(self.bytes) {
            *self = Self { bytes: 0, width, rows: Vec::new() };
        }
        let closed = markdown::stable_prefix_len(&text[self.bytes..]);
        if closed > 0 {
            append_block(&mut self.rows, markdown::render(&text[self.bytes..self.bytes + closed], width));
            self.bytes += closed;
        }
        let mut rows = self.rows.clone();
        append_block(&mut rows, markdown::render(&text[self.bytes..], width));
        rows
    }
}

/// Separates blocks of Markdown by an empty row.
fn append_block(rows: &mut Vec<Line<'static>>, more: Vec<Line<'static>>) {
    if !rows.is_empty() && !more.is_empty() {
        rows.push(Line::default());
    }
    rows.extend(more);
}

/// Shows a hint in an empty transcript.
fn empty_page_rows(chat: &ChatState, width: usize, height: usize) -> Vec<Line<'static>> {
    if chat.session_info.exists || height < 2 {
        return Vec::new();
    }
    let text = chat.texts.get("term.page.empty");
    let rows = crate::text_layout::wrap(&[ratatui_core::text::Span::styled(text, QUIET_STYLE)], width);
    std::iter::once(Line::default()).chain(rows).take(height).collect()
}

fn reserve_rows(rest: &mut usize, wanted: usize) -> usize {
    let taken = wanted.min(*rest);
    *rest -= taken;
    taken
}

struct ScreenRowWriter<'a> {
    buffer: &'a mut Buffer,
    row: u16,
    area: Rect,
}

impl ScreenRowWriter<'_> {
    /// Writes `height` rows, empty ones after the last line.
    fn write_rows(&mut self, lines: &[Line<'static>], height: usize) {
        for at in 0..height {
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
