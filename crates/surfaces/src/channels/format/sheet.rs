//! One script while it writes one piece. Marks are written as late as possible, so that none stands around nothing, and gaps
//! too, so that no piece begins or ends with one.

use std::rc::Rc;

use super::Measure;
use super::document::{Gap, Link, Mark, Row};
use super::script::{Fence, Script, Spot, ZERO_WIDTH};

/// More empty lines than this are not shown.
const EMPTY_LINES: usize = 8;

/// What is written of one piece.
pub(super) struct Sheet<'s> {
    script: &'s dyn Script,
    measure: Measure,
    longest: usize,
    out: String,
    length: usize,
    levels: Vec<Level>,
    /// The gap that is written before the next words.
    gap: Option<(Gap, usize)>,
    /// True when a space is.
    space: bool,
    line_start: bool,
    /// Where a mark ended that must not touch a letter.
    apart_at: usize,
    said: bool,
}

/// Something open.
pub(super) struct Level {
    pub(super) mark: Mark,
    fence: Option<Fence>,
    /// What it takes of the room at the most.
    load: usize,
    state: State,
}

/// Whether something open was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not yet.
    New,
    /// Not in this piece.
    Continued,
    /// Its beginning, and its end takes so much.
    Written { debt: usize },
}

impl<'s> Sheet<'s> {
    pub(super) fn new(script: &'s dyn Script, measure: Measure, longest: usize) -> Self {
        Self {
            script,
            measure,
            longest,
            out: String::new(),
            length: 0,
            levels: Vec::new(),
            gap: None,
            space: false,
            line_start: true,
            apart_at: usize::MAX,
            said: false,
        }
    }

    /// True when words were written.
    pub(super) fn said(&self) -> bool {
        self.said
    }

    /// How long it is, with the ends of all that is open.
    pub(super) fn length(&self) -> usize {
        let debt: usize = self.levels.iter().map(Level::debt).sum();
        self.length + debt
    }

    pub(super) fn fits(&self) -> bool {
        self.length() <= self.longest
    }

    /// Begins with the sign that there was more.
    pub(super) fn more(&mut self) {
        self.put(self.script.more());
    }

    /// Something begins, or goes on from the piece before.
    pub(super) fn open(&mut self, mark: &Mark, how: How) {
        let (fence, load) = match self.shown(mark) {
            Some((fence, load)) => (Some(fence), load),
            None => (None, 0),
        };
        if fence.is_none() && matches!(mark, Mark::Cell { .. }) {
            self.space = true;
        }
        if fence.as_ref().is_some_and(|fence| fence.alone) {
            self.suspend();
        }
        let state = if how == How::Begins { State::New } else { State::Continued };
        self.levels.push(Level { mark: mark.clone(), fence, load, state });
        if how == How::Begins && matches!(mark, Mark::Cell { .. }) {
            // An empty cell is one, too.
            self.flush();
        }
    }

    /// What began last ends.
    pub(super) fn close(&mut self) {
        let Some(level) = self.levels.last() else { return };
        if let (State::Written { .. }, Some(fence)) = (level.state, &level.fence) {
            let (close, apart) = (fence.close.clone(), fence.apart);
            self.put_lines(&close, self.in_block_of_code());
            if apart {
                self.apart_at = self.out.len();
            }
        }
        self.levels.pop();
    }

    /// Something new follows.
    pub(super) fn gap(&mut self, gap: Gap) {
        self.space = false;
        self.gap = match self.gap {
            Some((Gap::Line, lines)) if gap == Gap::Line => Some((gap, lines + 1)),
            Some((Gap::Block | Gap::Heading | Gap::Item, _)) if gap == Gap::Line => self.gap,
            _ => Some((gap, 1)),
        };
    }

    /// Words, or where a link leads.
    pub(super) fn text(&mut self, text: &str) {
        if self.levels.iter().any(|level| level.mark.is_code()) {
            self.flush();
            let shown = self.levels.iter().any(|level| level.mark.is_code() && level.fence.is_some());
            let spot = if shown { Spot::Code } else { self.spot() };
            return self.write(text, spot);
        }
        let word = text.trim_start_matches([' ', '\t']);
        self.space |= word.len() < text.len();
        let Some(first) = word.chars().next() else { return };
        self.flush();
        if self.apart_at == self.out.len() && first.is_alphanumeric() {
            self.put_char(ZERO_WIDTH);
        }
        self.write(word, self.spot());
    }

    fn spot(&self) -> Spot {
        if self.line_start { Spot::LineStart } else { Spot::Within }
    }

    /// Where a link leads, unless it was shown as one.
    pub(super) fn address(&mut self, part: &str, link: &Rc<Link>) {
        if self.shown(&Mark::Link(Rc::clone(link))).is_none() {
            self.text(part);
        }
    }

    pub(super) fn rule(&mut self) {
        self.flush();
        self.put(self.script.rule());
        (self.said, self.line_start) = (true, false);
    }

    /// Ends all that is open.
    pub(super) fn finish(mut self) -> String {
        while !self.levels.is_empty() {
            self.close();
        }
        self.out
    }

    fn write(&mut self, text: &str, spot: Spot) {
        let before = self.out.len();
        self.script.text(text, spot, &mut self.out);
        self.length += self.measure.count(&self.out[before..]);
        (self.said, self.line_start) = (true, false);
    }

    /// What stands around a mark here, if anything does, and what it takes of the room. Marks get half of it at the most,
    /// whatever is nested in what.
    fn shown(&self, mark: &Mark) -> Option<(Fence, usize)> {
        let parent = self.levels.last();
        let needs_parent = matches!(mark, Mark::Item(_) | Mark::Row(_) | Mark::Cell { .. });
        if needs_parent && parent.is_none_or(|parent| parent.fence.is_none()) {
            return None;
        }
        let fence = self.script.fence(mark, &self.levels)?;
        let same = |level: &Level| level.fence.as_ref().is_some_and(|outer| outer.open == fence.open);
        if mark.is_style() && self.levels.iter().any(same) {
            return None;
        }
        let load = self.load(&fence);
        let children: usize = children(mark).iter().map(|child| self.load_of(child)).sum();
        let taken: usize = self.levels.iter().map(|level| level.load).sum();
        // What must be in it was counted with it.
        let granted = taken + load + children <= self.longest / 2;
        granted.then_some((fence, load))
    }

    fn load_of(&self, mark: &Mark) -> usize {
        self.script.fence(mark, &self.levels).map_or(0, |fence| self.load(&fence))
    }

    fn load(&self, fence: &Fence) -> usize {
        let count = |text: &str| self.measure.count(text);
        let breaks = fence.open.matches('\n').count() + fence.close.matches('\n').count();
        let apart = if fence.apart || fence.open.starts_with('`') { 2 * count("\u{200b}") } else { 0 };
        count(&fence.open).max(count(&fence.again))
            + count(&fence.close)
            + count(&fence.margin)
            + apart
            + breaks * self.margin_length()
    }

    fn margin_length(&self) -> usize {
        let margins = self.levels.iter().filter_map(|level| level.fence.as_ref());
        margins.map(|fence| self.measure.count(&fence.margin)).sum()
    }

    /// Ends styles and links for now; they are opened again with the next words.
    fn suspend(&mut self) {
        for at in (0..self.levels.len()).rev() {
            let level = &mut self.levels[at];
            if !level.mark.is_of_letters() {
                break;
            }
            if let (State::Written { .. }, Some(fence)) = (level.state, &level.fence) {
                level.state = State::Continued;
                let close = fence.close.clone();
                self.put(&close);
            }
        }
    }

    /// Writes what waits: the gap, then what was opened.
    fn flush(&mut self) {
        let code = self.in_block_of_code();
        if let Some((gap, lines)) = self.gap.take()
            && self.said
        {
            let text = self.script.gap(gap, if code { Spot::Code } else { Spot::Within });
            for _ in 0..lines.min(EMPTY_LINES) {
                self.put_lines(text, code);
            }
        }
        if std::mem::take(&mut self.space) && !self.line_start {
            self.put_char(' ');
        }
        let alone = self.levels.last().and_then(|top| top.fence.as_ref()).is_some_and(|fence| fence.alone);
        for at in 0..self.levels.len() {
            let top = at + 1 == self.levels.len();
            if !(alone && self.levels[at].mark.is_of_letters() && !top) {
                self.begin(at);
            }
        }
    }

    fn begin(&mut self, at: usize) {
        let level = &mut self.levels[at];
        let Some(fence) = &level.fence else { return };
        let open = match level.state {
            State::Written { .. } => return,
            State::New => fence.open.clone(),
            State::Continued => fence.again.clone(),
        };
        let (inline, apart) = (level.mark.is_inline(), fence.apart);
        let (close, debt) = (fence.close.matches('\n').count(), self.measure.count(&fence.close));
        let code = matches!(level.mark, Mark::CodeBlock { .. });
        level.state = State::Written { debt: 0 };
        let touches = apart && self.out.chars().next_back().is_some_and(char::is_alphanumeric);
        // Two rows of backticks would be a longer one.
        if touches || open.starts_with('`') && self.out.ends_with('`') {
            self.put_char(ZERO_WIDTH);
        }
        self.put_lines(&open, code);
        self.line_start &= open.is_empty() || !inline;
        let debt = debt + close * self.margin_length();
        self.levels[at].state = State::Written { debt };
    }

    fn in_block_of_code(&self) -> bool {
        self.levels.iter().any(|level| matches!(level.mark, Mark::CodeBlock { .. }))
    }

    /// Writes a text whose lines have margins.
    fn put_lines(&mut self, text: &str, code: bool) {
        let mut lines = text.split('\n').peekable();
        while let Some(line) = lines.next() {
            self.put(line);
            if let Some(next) = lines.peek() {
                self.put_char('\n');
                let margin = self.margin(code);
                let empty = next.is_empty() && lines.clone().nth(1).is_some();
                let margin = if empty { margin.trim_end() } else { &margin };
                self.put(margin);
                self.line_start = true;
            }
        }
    }

    fn margin(&self, code: bool) -> String {
        let written = self.levels.iter().filter(|level| matches!(level.state, State::Written { .. }));
        let fences = written.filter_map(|level| level.fence.as_ref());
        fences.map(|fence| if code { fence.code_margin.as_str() } else { &fence.margin }).collect()
    }

    fn put(&mut self, text: &str) {
        self.out.push_str(text);
        self.length += self.measure.count(text);
    }

    fn put_char(&mut self, sign: char) {
        let mut bytes = [0; 4];
        self.put(sign.encode_utf8(&mut bytes));
    }
}

/// Whether a mark is new in a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// It begins here.
    Begins,
    /// It began in an earlier piece.
    GoesOn,
}

impl Level {
    fn debt(&self) -> usize {
        match self.state {
            State::New | State::Continued => 0,
            State::Written { debt } => debt,
        }
    }
}

/// What has to be in something, if it is to be shown at all.
fn children(mark: &Mark) -> Vec<Mark> {
    match mark {
        Mark::List(_) => vec![Mark::Item(Some(999_999_999))],
        Mark::Table { columns } => {
            let row = Row::Head { columns: *columns };
            vec![Mark::Row(row), Mark::Cell { row, first: false }]
        }
        _ => Vec::new(),
    }
}
