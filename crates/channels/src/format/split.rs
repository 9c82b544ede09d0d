//! Split a token stream into pieces that fit, at the best break point near the end of each.

use std::rc::Rc;

use super::break_points::{BREAK_RANKS, BreakRank, grapheme_boundaries, ranked_chunks};
use super::document::{BlockSeparator, DocumentElement, DocumentLink, DocumentToken};
use super::markup::MarkupSyntax;
use super::writer::{LevelStart, PieceWriter};
use super::{Markup, MessageFormat, MessagePiece, has_visible_text};

/// How full a piece must be, in twelfths, for a break point to be used; by rank.
const MIN_FILL_TWELFTHS: [usize; BREAK_RANKS] = [4, 6, 6, 3];

pub(super) struct MessageSplitter<'t> {
    /// With the rank of a break after a separator, or before a text. A slice, because an insertion would move all later
    /// steps.
    steps: Box<[(WriteStep<'t>, Option<BreakRank>)]>,
    syntaxes: (&'static dyn MarkupSyntax, &'static dyn MarkupSyntax),
    format: MessageFormat,
}

/// A token, or a chunk of its text, that is written at once.
#[derive(Clone, Copy)]
enum WriteStep<'t> {
    Open(&'t DocumentElement),
    Close,
    Rule,
    Separator(BlockSeparator),
    Text(&'t str),
    Address { part: &'t str, link: &'t Rc<DocumentLink> },
}

/// The index of a step, and the elements that are open before it.
#[derive(Clone, Default)]
struct PieceStart {
    index: usize,
    open_elements: Vec<DocumentElement>,
}

/// The end of a piece.
struct PieceEnd<'t> {
    /// The index of the step that begins the next piece.
    index: usize,
    /// The part of a cut step that is still in this piece.
    cut_part: Option<WriteStep<'t>>,
}

/// Writers of the network's markup and of the plain text, side by side.
struct PieceWriters {
    formatted: PieceWriter<'static>,
    plain: PieceWriter<'static>,
}

/// The last break point of each rank, and the length of the piece there.
#[derive(Default)]
struct BestBreaks([Option<(usize, usize)>; BREAK_RANKS]);

impl<'t> MessageSplitter<'t> {
    pub(super) fn new(tokens: &'t [DocumentToken], format: &MessageFormat) -> Self {
        let mut steps = Vec::with_capacity(tokens.len());
        for token in tokens {
            match token {
                DocumentToken::Open(element) => steps.push((WriteStep::Open(element), None)),
                DocumentToken::Close => steps.push((WriteStep::Close, None)),
                DocumentToken::Rule => steps.push((WriteStep::Rule, None)),
                DocumentToken::Separator(separator) => {
                    steps.push((WriteStep::Separator(*separator), separator_rank(*separator)));
                }
                DocumentToken::Text(text) => {
                    steps.extend(ranked_chunks(text).map(|(part, rank)| (WriteStep::Text(part), rank)));
                }
                DocumentToken::Address(link) => {
                    let chunks = ranked_chunks(&link.address_text);
                    steps.extend(chunks.map(|(part, rank)| (WriteStep::Address { part, link }, rank)));
                }
            }
        }
        Self { steps: steps.into(), syntaxes: format.markup.syntaxes(), format: *format }
    }

    pub(super) fn split(mut self) -> Vec<MessagePiece> {
        let pieces = self.write_pieces().into_iter().map(PieceWriters::finish);
        pieces.filter(|piece| has_visible_text(&piece.plain)).collect()
    }

    fn write_pieces(&mut self) -> Vec<PieceWriters> {
        let (mut pieces, mut start) = (Vec::new(), PieceStart::default());
        while start.index < self.steps.len() {
            let end = self.find_piece_end(&start);
            let (mut writers, next) = self.write_until(start, end.index);
            if let Some(part) = end.cut_part {
                writers.apply_step(part);
            }
            pieces.push(writers);
            start = next;
        }
        pieces
    }

    /// The end of the piece that begins at `start`.
    fn find_piece_end(&mut self, start: &PieceStart) -> PieceEnd<'t> {
        let (mut writers, mut best) = (self.start_writers(start), BestBreaks::default());
        for index in start.index..self.steps.len() {
            let (step, rank) = self.steps[index];
            if writers.has_text() {
                let is_separator = matches!(step, WriteStep::Separator(_));
                let break_index = index + usize::from(is_separator);
                if is_separator && self.format.markup == Markup::Plain {
                    return PieceEnd::before(break_index);
                }
                best.record_break(rank, break_index, writers.length());
            }
            writers.apply_step(step);
            if !writers.fits() {
                let best = best.choose_break(self.format.effective_max_length());
                return best.map_or_else(|| self.force_break(start, index), PieceEnd::before);
            }
        }
        PieceEnd::before(self.steps.len())
    }

    /// Cuts a step that did not fit at its last grapheme boundary such that the piece before it fits. The rest of the
    /// step takes its place. Returns the end of that piece.
    fn force_break(&mut self, start: &PieceStart, index: usize) -> PieceEnd<'t> {
        let (step, _) = self.steps[index];
        let (WriteStep::Text(text) | WriteStep::Address { part: text, .. }) = step else {
            return PieceEnd::before(index.max(start.index + 1));
        };
        let fits = |at: usize| {
            let mut writers = self.write_until(start.clone(), index).0;
            writers.apply_step(step.with_text(&text[..at]));
            writers.fits()
        };
        let letters = grapheme_boundaries(text);
        let cut = match letters.partition_point(|at| fits(*at)).checked_sub(1) {
            Some(last) => letters[last],
            None if index > start.index => return PieceEnd::before(index),
            None => {
                // A grapheme that is longer than a piece.
                let characters: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
                let last = characters.partition_point(|at| fits(*at)).saturating_sub(1);
                let Some(cut) = characters.get(last) else { return PieceEnd::before(index + 1) };
                *cut
            }
        };
        self.steps[index] = (step.with_text(&text[cut..]), None);
        PieceEnd { index, cut_part: Some(step.with_text(&text[..cut])) }
    }

    /// Writes from a position to another. Returns the elements that are open there, too.
    fn write_until(&self, start: PieceStart, until: usize) -> (PieceWriters, PieceStart) {
        let mut writers = self.start_writers(&start);
        for (step, _) in &self.steps[start.index..until] {
            writers.apply_step(*step);
        }
        (writers, self.advance(start, until))
    }

    fn advance(&self, start: PieceStart, until: usize) -> PieceStart {
        let mut open_elements = start.open_elements;
        for (step, _) in &self.steps[start.index..until] {
            match step {
                WriteStep::Open(element) => open_elements.push((*element).clone()),
                WriteStep::Close => {
                    if let (Some(DocumentElement::Item(_)), Some(DocumentElement::List(Some(number)))) =
                        (open_elements.pop(), open_elements.last_mut())
                    {
                        *number = number.saturating_add(1);
                    }
                }
                WriteStep::Rule | WriteStep::Separator(_) | WriteStep::Text(_) | WriteStep::Address { .. } => {}
            }
        }
        PieceStart { index: until, open_elements }
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

    /// The whole text if it fits, else the last part that fits, from the best break point.
    pub(super) fn last_piece(mut self) -> Option<MessagePiece> {
        let whole = self.write_rest(0).or_else(|| self.write_tail())?;
        let piece = whole.finish();
        has_visible_text(&piece.plain).then_some(piece)
    }

    fn write_tail(&mut self) -> Option<PieceWriters> {
        let mut places = Vec::new();
        for (index, (step, rank)) in self.steps.iter().enumerate() {
            match step {
                WriteStep::Separator(_) => places.push((index + 1, *rank)),
                WriteStep::Text(_) | WriteStep::Address { .. } => places.push((index, *rank)),
                WriteStep::Open(_) | WriteStep::Close | WriteStep::Rule => {}
            }
        }
        let all: Vec<usize> = places.iter().map(|(place, _)| *place).collect();
        let ranked = |worst: BreakRank| -> Vec<usize> {
            let good = places.iter().filter(|(_, rank)| rank.is_some_and(|rank| rank <= worst));
            good.map(|(place, _)| *place).collect()
        };
        let is_half_full = |writers: &PieceWriters| writers.length() >= self.format.effective_max_length() / 2;
        self.write_earliest_fitting(&ranked(BreakRank::Line))
            .filter(is_half_full)
            .or_else(|| self.write_earliest_fitting(&ranked(BreakRank::Word)).filter(is_half_full))
            .or_else(|| self.write_earliest_fitting(&all))
            .or_else(|| self.write_pieces().into_iter().rfind(PieceWriters::has_text))
    }

    /// Writes from the earliest of these positions from which the rest fits.
    fn write_earliest_fitting(&self, places: &[usize]) -> Option<PieceWriters> {
        let first = places.partition_point(|place| self.write_rest(*place).is_none());
        places.get(first).and_then(|place| self.write_rest(*place))
    }

    /// Writes everything from a position on, if it fits.
    fn write_rest(&self, from: usize) -> Option<PieceWriters> {
        let mut writers = self.start_writers(&self.advance(PieceStart::default(), from));
        if from > 0 {
            writers.formatted.write_continuation_mark();
            writers.plain.write_continuation_mark();
        }
        let mut second_line = false;
        for (step, _) in &self.steps[from..] {
            match step {
                WriteStep::Separator(_) => second_line |= self.format.markup == Markup::Plain && writers.has_text(),
                WriteStep::Text(_) | WriteStep::Address { .. } | WriteStep::Rule if second_line => return None,
                _ => {}
            }
            writers.apply_step(*step);
            if !writers.fits() {
                return None;
            }
        }
        writers.has_text().then_some(writers)
    }
}

impl<'t> WriteStep<'t> {
    /// The same step with another text, if it has a text.
    fn with_text(self, part: &'t str) -> Self {
        match self {
            Self::Text(_) => Self::Text(part),
            Self::Address { link, .. } => Self::Address { part, link },
            Self::Open(_) | Self::Close | Self::Rule | Self::Separator(_) => self,
        }
    }
}

impl PieceEnd<'_> {
    fn before(index: usize) -> Self {
        Self { index, cut_part: None }
    }
}

impl PieceWriters {
    fn apply_step(&mut self, step: WriteStep<'_>) {
        for writer in [&mut self.formatted, &mut self.plain] {
            match step {
                WriteStep::Open(element) => writer.open_element(element, LevelStart::Begins),
                WriteStep::Close => writer.close_element(),
                WriteStep::Rule => writer.write_rule(),
                WriteStep::Separator(separator) => writer.add_separator(separator),
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
    fn record_break(&mut self, rank: Option<BreakRank>, index: usize, length: usize) {
        if let Some(rank) = rank {
            self.0[rank as usize] = Some((index, length));
        }
    }

    fn choose_break(&self, limit: usize) -> Option<usize> {
        let good = |(found, share): (&Option<(usize, usize)>, usize)| {
            found.filter(|(_, length)| length * 12 >= limit * share).map(|(index, _)| index)
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
