//! Split a token stream into pieces that fit, at the best break point near the end of each.

use std::rc::Rc;

use super::break_points::{BREAK_RANKS, BreakRank, break_rank_before, chunk_end, grapheme_boundaries};
use super::document::{BlockSeparator, DocumentElement, DocumentLink, DocumentToken};
use super::markup::MarkupSyntax;
use super::writer::{LevelStart, PieceWriter};
use super::{Markup, MessageFormat, MessagePiece, has_visible_text};

/// How full a piece must be, in twelfths, for a break point to be used; by rank.
const MIN_FILL_TWELFTHS: [usize; BREAK_RANKS] = [4, 6, 6, 3];

pub(super) struct MessageSplitter<'t> {
    tokens: &'t [DocumentToken],
    syntaxes: (&'static dyn MarkupSyntax, &'static dyn MarkupSyntax),
    format: MessageFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TokenPosition {
    token_index: usize,
    byte_offset: usize,
}

/// A position, and the elements that are open there.
#[derive(Debug, Clone)]
struct PieceStart {
    position: TokenPosition,
    open_elements: Vec<DocumentElement>,
}

/// A token, or a chunk of its text, that is written at once.
enum WriteStep<'t> {
    Open(&'t DocumentElement),
    Close,
    Rule,
    Separator(BlockSeparator),
    Text(&'t str),
    Address { part: &'t str, link: &'t Rc<DocumentLink> },
}

/// Writers of the network's markup and of the plain text, side by side.
struct PieceWriters {
    formatted: PieceWriter<'static>,
    plain: PieceWriter<'static>,
}

/// The last break point of each rank, and the length of the piece there.
#[derive(Default)]
struct BestBreaks([Option<(TokenPosition, usize)>; BREAK_RANKS]);

impl<'t> MessageSplitter<'t> {
    pub(super) fn new(tokens: &'t [DocumentToken], format: &MessageFormat) -> Self {
        Self { tokens, syntaxes: format.markup.syntaxes(), format: *format }
    }

    pub(super) fn split(&self) -> Vec<MessagePiece> {
        self.piece_writers().map(PieceWriters::finish).filter(|piece| has_visible_text(&piece.plain)).collect()
    }

    /// Writes the pieces one after the other.
    fn piece_writers(&self) -> impl Iterator<Item = PieceWriters> {
        let mut start =
            PieceStart { position: TokenPosition { token_index: 0, byte_offset: 0 }, open_elements: Vec::new() };
        std::iter::from_fn(move || {
            if start.position.token_index >= self.tokens.len() {
                return None;
            }
            let until = self.find_piece_end(&start);
            let (writers, next) = self.write_until(start.clone(), until);
            start = next;
            Some(writers)
        })
    }

    /// The end of the piece that begins at `start`.
    fn find_piece_end(&self, start: &PieceStart) -> TokenPosition {
        let mut writers = self.start_writers(start);
        let (mut best, mut place) = (BestBreaks::default(), start.position);
        while let Some((step, next)) = self.next_step(place) {
            if writers.has_text() {
                if let WriteStep::Separator(separator) = step {
                    if self.format.markup == Markup::Plain {
                        return next;
                    }
                    best.record_break(separator_rank(separator), next, writers.length());
                } else if let WriteStep::Text(_) | WriteStep::Address { .. } = step {
                    best.record_break(self.break_rank_at(place), place, writers.length());
                }
            }
            writers.apply_step(&step);
            if !writers.fits() {
                return best
                    .choose_break(self.format.effective_max_length())
                    .unwrap_or_else(|| self.find_forced_break(start, place, next));
            }
            place = next;
        }
        place
    }

    /// The last grapheme boundary in a step that did not fit, such that the piece before it fits.
    fn find_forced_break(&self, start: &PieceStart, before: TokenPosition, after: TokenPosition) -> TokenPosition {
        let Some(text_part) = self
            .text_at(before.token_index)
            .and_then(|words| words.get(before.byte_offset..self.text_end(before, after)))
        else {
            return if before > start.position { before } else { after };
        };
        let fits = |at: usize| {
            let until = TokenPosition { byte_offset: before.byte_offset + at, ..before };
            self.write_until(start.clone(), until).0.fits()
        };
        let letters = grapheme_boundaries(text_part);
        let fitting_count = letters.partition_point(|at| fits(*at));
        if let Some(at) = fitting_count.checked_sub(1) {
            return TokenPosition { byte_offset: before.byte_offset + letters[at], ..before };
        }
        if before > start.position {
            return before;
        }
        // A grapheme that is longer than a piece.
        let characters: Vec<usize> = text_part.char_indices().map(|(at, _)| at).skip(1).collect();
        let whole = characters.partition_point(|at| fits(*at)).saturating_sub(1);
        characters.get(whole).map_or(after, |at| TokenPosition { byte_offset: before.byte_offset + at, ..before })
    }

    fn text_end(&self, before: TokenPosition, after: TokenPosition) -> usize {
        if after.token_index == before.token_index {
            after.byte_offset
        } else {
            self.text_at(before.token_index).map_or(0, str::len)
        }
    }

    /// Writes from a position to another. Returns the elements that are open there, too.
    fn write_until(&self, start: PieceStart, until: TokenPosition) -> (PieceWriters, PieceStart) {
        let mut writers = self.start_writers(&start);
        let PieceStart { position: mut place, open_elements: mut open } = start;
        while place < until
            && let Some((step, next)) = self.next_step(place)
        {
            let next = next.min(until);
            let step = self.truncate_step(step, place, next);
            track_open_elements(&mut open, &step);
            writers.apply_step(&step);
            place = next;
        }
        (writers, PieceStart { position: until, open_elements: open })
    }

    /// Cuts a step so that it ends at `next`.
    fn truncate_step(&self, step: WriteStep<'t>, position: TokenPosition, next: TokenPosition) -> WriteStep<'t> {
        if next.token_index > position.token_index {
            return step;
        }
        match step {
            WriteStep::Text(part) => WriteStep::Text(&part[..next.byte_offset - position.byte_offset]),
            WriteStep::Address { part, link } => {
                WriteStep::Address { part: &part[..next.byte_offset - position.byte_offset], link }
            }
            WriteStep::Open(_) | WriteStep::Close | WriteStep::Rule | WriteStep::Separator(_) => step,
        }
    }

    fn start_writers(&self, start: &PieceStart) -> PieceWriters {
        let new_writer = |syntax| PieceWriter::new(syntax, self.format.length_unit, self.format.effective_max_length());
        let mut writers = PieceWriters { formatted: new_writer(self.syntaxes.0), plain: new_writer(self.syntaxes.1) };
        for element in &start.open_elements {
            writers.formatted.open_element(element, LevelStart::Continues);
            writers.plain.open_element(element, LevelStart::Continues);
        }
        writers
    }

    fn next_step(&self, position: TokenPosition) -> Option<(WriteStep<'t>, TokenPosition)> {
        let after = TokenPosition { token_index: position.token_index + 1, byte_offset: 0 };
        let part = |words: &'t str| {
            let end = chunk_end(words, position.byte_offset);
            (
                &words[position.byte_offset..end],
                if end == words.len() { after } else { TokenPosition { byte_offset: end, ..position } },
            )
        };
        Some(match self.tokens.get(position.token_index)? {
            DocumentToken::Open(element) => (WriteStep::Open(element), after),
            DocumentToken::Close => (WriteStep::Close, after),
            DocumentToken::Rule => (WriteStep::Rule, after),
            DocumentToken::Separator(separator) => (WriteStep::Separator(*separator), after),
            DocumentToken::Text(words) => {
                let (part, next) = part(words);
                (WriteStep::Text(part), next)
            }
            DocumentToken::Address(link) => {
                let (part, next) = part(&link.address_text);
                (WriteStep::Address { part, link }, next)
            }
        })
    }

    fn text_at(&self, token: usize) -> Option<&'t str> {
        match self.tokens.get(token)? {
            DocumentToken::Text(words) => Some(words),
            DocumentToken::Address(link) => Some(&link.address_text),
            DocumentToken::Open(_) | DocumentToken::Close | DocumentToken::Rule | DocumentToken::Separator(_) => None,
        }
    }

    fn break_rank_at(&self, position: TokenPosition) -> Option<BreakRank> {
        let words = self.text_at(position.token_index)?;
        if position.byte_offset == 0 {
            words.starts_with(' ').then_some(BreakRank::Word)
        } else {
            break_rank_before(words, position.byte_offset)
        }
    }

    /// The whole text if it fits, else the last part that fits, from the best break point.
    pub(super) fn last_piece(&self) -> Option<MessagePiece> {
        let start =
            PieceStart { position: TokenPosition { token_index: 0, byte_offset: 0 }, open_elements: Vec::new() };
        let whole = self.write_rest(start, RestOrigin::WholeText).or_else(|| self.write_tail())?;
        let piece = whole.finish();
        has_visible_text(&piece.plain).then_some(piece)
    }

    fn write_tail(&self) -> Option<PieceWriters> {
        let (mut places, mut place) = (Vec::new(), TokenPosition { token_index: 0, byte_offset: 0 });
        while let Some((step, next)) = self.next_step(place) {
            match step {
                WriteStep::Separator(separator) => places.push((next, separator_rank(separator))),
                WriteStep::Text(_) | WriteStep::Address { .. } => places.push((place, self.break_rank_at(place))),
                WriteStep::Open(_) | WriteStep::Close | WriteStep::Rule => {}
            }
            place = next;
        }
        let all: Vec<TokenPosition> = places.iter().map(|(place, _)| *place).collect();
        let ranked = |worst: BreakRank| -> Vec<TokenPosition> {
            let good = places.iter().filter(|(_, rank)| rank.is_some_and(|rank| rank <= worst));
            good.map(|(place, _)| *place).collect()
        };
        let is_half_full = |writers: &PieceWriters| writers.length() >= self.format.effective_max_length() / 2;
        let write_from_earliest = |places: &[TokenPosition]| self.write_earliest_fitting(places);
        write_from_earliest(&ranked(BreakRank::Line))
            .filter(is_half_full)
            .or_else(|| write_from_earliest(&ranked(BreakRank::Word)).filter(is_half_full))
            .or_else(|| write_from_earliest(&all))
            .or_else(|| self.piece_writers().filter(PieceWriters::has_text).last())
    }

    /// Writes from the earliest of these positions from which the rest fits.
    fn write_earliest_fitting(&self, places: &[TokenPosition]) -> Option<PieceWriters> {
        let from = |place: &TokenPosition| self.write_rest(self.start_at(*place), RestOrigin::MidText);
        let first = places.partition_point(|place| from(place).is_none());
        places.get(first).and_then(from)
    }

    /// A position with the elements that are open there.
    fn start_at(&self, position: TokenPosition) -> PieceStart {
        let mut start =
            PieceStart { position: TokenPosition { token_index: 0, byte_offset: 0 }, open_elements: Vec::new() };
        for token in &self.tokens[..position.token_index] {
            match token {
                DocumentToken::Open(element) => {
                    track_open_elements(&mut start.open_elements, &WriteStep::Open(element))
                }
                DocumentToken::Close => track_open_elements(&mut start.open_elements, &WriteStep::Close),
                DocumentToken::Text(_)
                | DocumentToken::Address(_)
                | DocumentToken::Rule
                | DocumentToken::Separator(_) => {}
            }
        }
        PieceStart { position, ..start }
    }

    /// Writes everything from a position on, if it fits.
    fn write_rest(&self, start: PieceStart, from: RestOrigin) -> Option<PieceWriters> {
        let mut writers = self.start_writers(&start);
        if from == RestOrigin::MidText {
            writers.formatted.write_continuation_mark();
            writers.plain.write_continuation_mark();
        }
        let (mut place, mut second_line) = (start.position, false);
        while let Some((step, next)) = self.next_step(place) {
            match step {
                WriteStep::Separator(_) => second_line |= self.format.markup == Markup::Plain && writers.has_text(),
                WriteStep::Text(_) | WriteStep::Address { .. } | WriteStep::Rule if second_line => return None,
                WriteStep::Text(_)
                | WriteStep::Address { .. }
                | WriteStep::Rule
                | WriteStep::Open(_)
                | WriteStep::Close => {}
            }
            writers.apply_step(&step);
            if !writers.fits() {
                return None;
            }
            place = next;
        }
        writers.has_text().then_some(writers)
    }
}

/// Whether there is text before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestOrigin {
    WholeText,
    MidText,
}

impl PieceWriters {
    fn apply_step(&mut self, step: &WriteStep<'_>) {
        for writer in [&mut self.formatted, &mut self.plain] {
            match step {
                WriteStep::Open(element) => writer.open_element(element, LevelStart::Begins),
                WriteStep::Close => writer.close_element(),
                WriteStep::Rule => writer.write_rule(),
                WriteStep::Separator(separator) => writer.add_separator(*separator),
                WriteStep::Text(words) => writer.write_text(words),
                WriteStep::Address { part, link } => writer.write_link_address(part, link),
            }
        }
    }

    fn has_text(&self) -> bool {
        self.formatted.has_text() || self.plain.has_text()
    }

    fn fits(&self) -> bool {
        self.formatted.fits() && self.plain.fits()
    }

    fn length(&self) -> usize {
        self.formatted.length().max(self.plain.length())
    }

    fn finish(self) -> MessagePiece {
        MessagePiece { formatted: self.formatted.finish(), plain: self.plain.finish() }
    }
}

impl BestBreaks {
    fn record_break(&mut self, rank: Option<BreakRank>, position: TokenPosition, length: usize) {
        if let Some(rank) = rank {
            self.0[rank as usize] = Some((position, length));
        }
    }

    fn choose_break(&self, limit: usize) -> Option<TokenPosition> {
        let good = |(found, share): (&Option<(TokenPosition, usize)>, usize)| {
            found.filter(|(_, length)| length * 12 >= limit * share).map(|(place, _)| place)
        };
        self.0.iter().zip(MIN_FILL_TWELFTHS).find_map(good)
    }
}

fn separator_rank(separator: BlockSeparator) -> Option<BreakRank> {
    match separator {
        BlockSeparator::Block => Some(BreakRank::Block),
        BlockSeparator::Item | BlockSeparator::Line => Some(BreakRank::Line),
        // A piece does not end after a heading.
        BlockSeparator::Heading => None,
    }
}

/// Updates the open elements and the number of each open list.
fn track_open_elements(open: &mut Vec<DocumentElement>, step: &WriteStep<'_>) {
    match step {
        WriteStep::Open(element) => open.push((*element).clone()),
        WriteStep::Close => {
            if let (Some(DocumentElement::Item(_)), Some(DocumentElement::List(Some(number)))) =
                (open.pop(), open.last_mut())
            {
                *number = number.saturating_add(1);
            }
        }
        WriteStep::Rule | WriteStep::Separator(_) | WriteStep::Text(_) | WriteStep::Address { .. } => {}
    }
}
