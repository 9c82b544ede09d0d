//! Cuts a text into pieces that fit, at the best place near the end of each.

use std::rc::Rc;

use super::chunk::{RANKS, Rank, chunk_end, cuts, rank_before};
use super::document::{Gap, Link, Mark, Token};
use super::script::Script;
use super::sheet::{How, Sheet};
use super::{Form, Markup, Piece, visible};

/// How much of a piece must be full, in twelfths, for a place to be good enough: by rank.
const FULL: [usize; RANKS] = [4, 6, 6, 3];

/// A text to be cut.
pub(super) struct Pack<'t> {
    tokens: &'t [Token],
    scripts: (&'static dyn Script, &'static dyn Script),
    form: Form,
}

/// A place in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    token: usize,
    byte: usize,
}

/// A place, and what is open there.
#[derive(Debug, Clone)]
struct Start {
    place: Place,
    open: Vec<Mark>,
}

/// What is written in one go.
enum Step<'t> {
    Open(&'t Mark),
    Close,
    Rule,
    Gap(Gap),
    Text(&'t str),
    Address { part: &'t str, link: &'t Rc<Link> },
}

/// Both scripts, side by side.
struct Sheets {
    marked: Sheet<'static>,
    plain: Sheet<'static>,
}

/// The best places so far, and how full the piece was there.
#[derive(Default)]
struct Best([Option<(Place, usize)>; RANKS]);

impl<'t> Pack<'t> {
    pub(super) fn new(tokens: &'t [Token], form: &Form) -> Self {
        Self { tokens, scripts: form.markup.scripts(), form: *form }
    }

    /// All pieces.
    pub(super) fn pieces(&self) -> Vec<Piece> {
        self.parts().map(Sheets::finish).filter(|piece| visible(&piece.plain)).collect()
    }

    /// What becomes of them, one after the other.
    fn parts(&self) -> impl Iterator<Item = Sheets> {
        let mut start = Start { place: Place { token: 0, byte: 0 }, open: Vec::new() };
        std::iter::from_fn(move || {
            if start.place.token >= self.tokens.len() {
                return None;
            }
            let until = self.fill(&start);
            let (sheets, next) = self.write(start.clone(), until);
            start = next;
            Some(sheets)
        })
    }

    /// Where the piece that begins at `start` ends.
    fn fill(&self, start: &Start) -> Place {
        let mut sheets = self.sheets(start);
        let (mut best, mut place) = (Best::default(), start.place);
        while let Some((step, next)) = self.step(place) {
            if sheets.said() {
                if let Step::Gap(gap) = step {
                    if self.form.markup == Markup::Plain {
                        return next;
                    }
                    best.note(gap_rank(gap), next, sheets.length());
                } else if let Step::Text(_) | Step::Address { .. } = step {
                    best.note(self.word_rank(place), place, sheets.length());
                }
            }
            sheets.take(&step);
            if !sheets.fit() {
                return best.choose(self.form.limit()).unwrap_or_else(|| self.cut(start, place, next));
            }
            place = next;
        }
        place
    }

    /// The last place inside what did not fit any more where all before it does.
    fn cut(&self, start: &Start, before: Place, after: Place) -> Place {
        let Some(part) = self.words(before.token).and_then(|words| words.get(before.byte..self.end(before, after)))
        else {
            return if before > start.place { before } else { after };
        };
        let fits = |at: usize| {
            let until = Place { byte: before.byte + at, ..before };
            self.write(start.clone(), until).0.fit()
        };
        let letters = cuts(part);
        let whole = letters.partition_point(|at| fits(*at));
        if let Some(at) = whole.checked_sub(1) {
            return Place { byte: before.byte + letters[at], ..before };
        }
        if before > start.place {
            return before;
        }
        // A "letter" that is longer than a piece.
        let characters: Vec<usize> = part.char_indices().map(|(at, _)| at).skip(1).collect();
        let whole = characters.partition_point(|at| fits(*at)).saturating_sub(1);
        characters.get(whole).map_or(after, |at| Place { byte: before.byte + at, ..before })
    }

    fn end(&self, before: Place, after: Place) -> usize {
        if after.token == before.token { after.byte } else { self.words(before.token).map_or(0, str::len) }
    }

    /// Writes from a place to another, and says what is open there.
    fn write(&self, start: Start, until: Place) -> (Sheets, Start) {
        let mut sheets = self.sheets(&start);
        let Start { mut place, mut open } = start;
        while place < until
            && let Some((step, next)) = self.step(place)
        {
            let next = next.min(until);
            let step = self.shortened(step, place, next);
            follow(&mut open, &step);
            sheets.take(&step);
            place = next;
        }
        (sheets, Start { place: until, open })
    }

    /// A step that ends earlier.
    fn shortened(&self, step: Step<'t>, place: Place, next: Place) -> Step<'t> {
        if next.token > place.token {
            return step;
        }
        match step {
            Step::Text(part) => Step::Text(&part[..next.byte - place.byte]),
            Step::Address { part, link } => Step::Address { part: &part[..next.byte - place.byte], link },
            Step::Open(_) | Step::Close | Step::Rule | Step::Gap(_) => step,
        }
    }

    fn sheets(&self, start: &Start) -> Sheets {
        let sheet = |script| Sheet::new(script, self.form.measure, self.form.limit());
        let mut sheets = Sheets { marked: sheet(self.scripts.0), plain: sheet(self.scripts.1) };
        for mark in &start.open {
            sheets.marked.open(mark, How::GoesOn);
            sheets.plain.open(mark, How::GoesOn);
        }
        sheets
    }

    fn step(&self, place: Place) -> Option<(Step<'t>, Place)> {
        let after = Place { token: place.token + 1, byte: 0 };
        let part = |words: &'t str| {
            let end = chunk_end(words, place.byte);
            (&words[place.byte..end], if end == words.len() { after } else { Place { byte: end, ..place } })
        };
        Some(match self.tokens.get(place.token)? {
            Token::Open(mark) => (Step::Open(mark), after),
            Token::Close => (Step::Close, after),
            Token::Rule => (Step::Rule, after),
            Token::Gap(gap) => (Step::Gap(*gap), after),
            Token::Text(words) => {
                let (part, next) = part(words);
                (Step::Text(part), next)
            }
            Token::Address(link) => {
                let (part, next) = part(&link.address);
                (Step::Address { part, link }, next)
            }
        })
    }

    fn words(&self, token: usize) -> Option<&'t str> {
        match self.tokens.get(token)? {
            Token::Text(words) => Some(words),
            Token::Address(link) => Some(&link.address),
            Token::Open(_) | Token::Close | Token::Rule | Token::Gap(_) => None,
        }
    }

    fn word_rank(&self, place: Place) -> Option<Rank> {
        let words = self.words(place.token)?;
        if place.byte == 0 { words.starts_with(' ').then_some(Rank::Word) } else { rank_before(words, place.byte) }
    }

    /// All of it if it fits, else the last part that does, as sensible a place as it begins at.
    pub(super) fn last(&self) -> Option<Piece> {
        let start = Start { place: Place { token: 0, byte: 0 }, open: Vec::new() };
        let whole = self.rest(start, From::Start).or_else(|| self.tail())?;
        let piece = whole.finish();
        visible(&piece.plain).then_some(piece)
    }

    fn tail(&self) -> Option<Sheets> {
        let (mut places, mut place) = (Vec::new(), Place { token: 0, byte: 0 });
        while let Some((step, next)) = self.step(place) {
            match step {
                Step::Gap(gap) => places.push((next, gap_rank(gap))),
                Step::Text(_) | Step::Address { .. } => places.push((place, self.word_rank(place))),
                Step::Open(_) | Step::Close | Step::Rule => {}
            }
            place = next;
        }
        let all: Vec<Place> = places.iter().map(|(place, _)| *place).collect();
        let ranked = |worst: Rank| -> Vec<Place> {
            let good = places.iter().filter(|(_, rank)| rank.is_some_and(|rank| rank <= worst));
            good.map(|(place, _)| *place).collect()
        };
        let full = |sheets: &Sheets| sheets.length() >= self.form.limit() / 2;
        let begin = |places: &[Place]| self.earliest(places);
        begin(&ranked(Rank::Line))
            .filter(full)
            .or_else(|| begin(&ranked(Rank::Word)).filter(full))
            .or_else(|| begin(&all))
            .or_else(|| self.parts().filter(Sheets::said).last())
    }

    /// From the first of these places from which the rest fits.
    fn earliest(&self, places: &[Place]) -> Option<Sheets> {
        let from = |place: &Place| self.rest(self.at(*place), From::Within);
        let first = places.partition_point(|place| from(place).is_none());
        places.get(first).and_then(from)
    }

    /// A place with what is open there.
    fn at(&self, place: Place) -> Start {
        let mut start = Start { place: Place { token: 0, byte: 0 }, open: Vec::new() };
        for token in &self.tokens[..place.token] {
            match token {
                Token::Open(mark) => follow(&mut start.open, &Step::Open(mark)),
                Token::Close => follow(&mut start.open, &Step::Close),
                Token::Text(_) | Token::Address(_) | Token::Rule | Token::Gap(_) => {}
            }
        }
        Start { place, ..start }
    }

    /// All from a place on, if it fits.
    fn rest(&self, start: Start, from: From) -> Option<Sheets> {
        let mut sheets = self.sheets(&start);
        if from == From::Within {
            sheets.marked.more();
            sheets.plain.more();
        }
        let (mut place, mut second_line) = (start.place, false);
        while let Some((step, next)) = self.step(place) {
            match step {
                Step::Gap(_) => second_line |= self.form.markup == Markup::Plain && sheets.said(),
                Step::Text(_) | Step::Address { .. } | Step::Rule if second_line => return None,
                Step::Text(_) | Step::Address { .. } | Step::Rule | Step::Open(_) | Step::Close => {}
            }
            sheets.take(&step);
            if !sheets.fit() {
                return None;
            }
            place = next;
        }
        sheets.said().then_some(sheets)
    }
}

/// Whether there is something before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Start,
    Within,
}

impl Sheets {
    fn take(&mut self, step: &Step<'_>) {
        for sheet in [&mut self.marked, &mut self.plain] {
            match step {
                Step::Open(mark) => sheet.open(mark, How::Begins),
                Step::Close => sheet.close(),
                Step::Rule => sheet.rule(),
                Step::Gap(gap) => sheet.gap(*gap),
                Step::Text(words) => sheet.text(words),
                Step::Address { part, link } => sheet.address(part, link),
            }
        }
    }

    fn said(&self) -> bool {
        self.marked.said() || self.plain.said()
    }

    fn fit(&self) -> bool {
        self.marked.fits() && self.plain.fits()
    }

    fn length(&self) -> usize {
        self.marked.length().max(self.plain.length())
    }

    fn finish(self) -> Piece {
        Piece { marked: self.marked.finish(), plain: self.plain.finish() }
    }
}

impl Best {
    fn note(&mut self, rank: Option<Rank>, place: Place, length: usize) {
        if let Some(rank) = rank {
            self.0[rank as usize] = Some((place, length));
        }
    }

    fn choose(&self, limit: usize) -> Option<Place> {
        let good = |(found, share): (&Option<(Place, usize)>, usize)| {
            found.filter(|(_, length)| length * 12 >= limit * share).map(|(place, _)| place)
        };
        self.0.iter().zip(FULL).find_map(good)
    }
}

fn gap_rank(gap: Gap) -> Option<Rank> {
    match gap {
        Gap::Block => Some(Rank::Block),
        Gap::Item | Gap::Line => Some(Rank::Line),
        // A heading does not stand at the end of a piece.
        Gap::Heading => None,
    }
}

/// Keeps what is open, and the number at which each list is.
fn follow(open: &mut Vec<Mark>, step: &Step<'_>) {
    match step {
        Step::Open(mark) => open.push((*mark).clone()),
        Step::Close => {
            if let (Some(Mark::Item(_)), Some(Mark::List(Some(number)))) = (open.pop(), open.last_mut()) {
                *number = number.saturating_add(1);
            }
        }
        Step::Rule | Step::Gap(_) | Step::Text(_) | Step::Address { .. } => {}
    }
}
