//! Which pictures a request shows, and what stands in the place of those that it does not.
//!
//! Pictures are user text like any other: a sealed turn shows the same ones in every later request, until there are more than
//! one request takes. Then the oldest give way, several at a time, so that the beginning of the requests changes seldom. Those
//! that tools answered with count among them, in the order in which they came.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::seen;
use crate::picture::{Picture, Piece, Source, Unseen, pieces};
use crate::turn::{CallResult, Turn, TurnDraft, blank};

/// The most pictures of one request.
pub const MOST: usize = 20;
/// So many of the oldest give way at once when there are more.
const GIVE_WAY: usize = 5;

/// Stands for a message that was pictures alone, before a model that reads text.
const BLIND: &str = "(a picture, which this model cannot see)";
/// Stands for a picture that newer ones have displaced, that a model did not take, or that nobody looked for.
const PAST: &str = "(a picture stood here; it is not shown any more)";

/// Whether the reader of a prompt sees pictures.
#[derive(Debug, Clone, Copy)]
pub enum Sight<'a> {
    /// It reads text: markers leave no trace where anything else was said.
    Blind,
    /// It sees these.
    Of(&'a Pictures),
}

/// The pictures that were found for a prompt, by their source. Their data is in no print.
#[derive(Clone, Default)]
pub struct Pictures(BTreeMap<String, Result<Picture, Unseen>>);

/// How much of a request is pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shown {
    /// How many.
    pub count: usize,
    /// Bytes of the base64 in the request.
    pub bytes: usize,
}

/// A piece of what a user says or a tool answers, as a dialect spells it.
pub(super) enum Part<'a> {
    Text(String),
    Picture(&'a Picture),
    Url(String),
}

impl Pictures {
    /// True when this source was looked at.
    #[must_use]
    pub fn knows(&self, source: &str) -> bool {
        self.0.contains_key(source)
    }

    /// Notes what became of a source. What was noted before stays: a request begins like the one before it.
    pub fn note(&mut self, source: String, found: Result<Picture, Unseen>) {
        self.0.entry(source).or_insert(found);
    }

    /// Bytes of all their base64.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.values().flatten().map(|picture| picture.base64().len()).sum()
    }
}

/// The sources, oldest first, of the pictures that a prompt on these shows: a caller that can read them makes [`Pictures`].
#[must_use]
pub fn wanted(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> Vec<String> {
    let (mut all, past) = census(turns, draft);
    all.drain(..past).for_each(drop);
    all.into_iter().map(str::to_owned).collect()
}

/// How much of a request on these is pictures.
#[must_use]
pub fn shown(turns: &[Arc<Turn>], draft: Option<&TurnDraft>, sight: Sight<'_>) -> Shown {
    let Sight::Of(pictures) = sight else { return Shown::default() };
    let (all, past) = census(turns, draft);
    let mut shown = Shown::default();
    for source in all.into_iter().skip(past) {
        match (pictures.0.get(source), Source::of(source)) {
            (Some(Ok(picture)), _) => {
                shown.count += 1;
                shown.bytes += picture.base64().len();
            }
            (None, Source::Url(_)) => shown.count += 1,
            (Some(Err(_)) | None, _) => {}
        }
    }
    shown
}

/// How many of the oldest pictures are not shown.
pub(super) fn past(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> usize {
    census(turns, draft).1
}

/// Every picture of a prompt by its source, oldest first, and how many of the first are not shown.
fn census<'a>(turns: &'a [Arc<Turn>], draft: Option<&'a TurnDraft>) -> (Vec<&'a str>, usize) {
    let (mut all, mut refused) = (Vec::new(), 0);
    for turn in seen(turns, draft).0 {
        let own = turn.pictures();
        if !turn.is_left_out() {
            all.extend(own);
        } else if turn.is_unseen() && own.count() == 0 {
            // It was the older ones that the model did not take, and it would not take them the next time either.
            refused = all.len();
        }
    }
    all.extend(draft.into_iter().flat_map(TurnDraft::pictures));
    let rest = all.len() - refused;
    let surplus = rest.saturating_sub(MOST).next_multiple_of(GIVE_WAY).min(rest);
    (all, refused + surplus)
}

/// The pictures of a result, for a reader who sees these. Of them the first `past` are not shown; they are counted down.
pub(super) fn of_result<'a>(result: &CallResult, pictures: &'a Pictures, past: &mut usize) -> Vec<Part<'a>> {
    let part = |source: &String| {
        if *past > 0 {
            *past -= 1;
            return Part::Text(PAST.to_owned());
        }
        match pictures.0.get(source) {
            Some(Ok(picture)) => Part::Picture(picture),
            Some(Err(unseen)) => Part::Text(unseen.words().to_owned()),
            None => Part::Text(PAST.to_owned()),
        }
    };
    result.pictures.iter().map(part).collect()
}

/// A result, for a reader who sees no pictures.
pub(super) fn told(result: &CallResult) -> Cow<'_, str> {
    match result.pictures.len() {
        0 => Cow::Borrowed(&result.output),
        1 => Cow::Owned(format!("{}\n{BLIND}", result.output)),
        count => Cow::Owned(format!("{}\n({count} pictures, which this model cannot see)", result.output)),
    }
}

/// What a user said, for a reader who sees no pictures.
pub(super) fn without_pictures(text: &str) -> String {
    let pieces = pieces(text);
    if !pieces.iter().any(|piece| matches!(piece, Piece::Picture(_))) {
        return text.to_owned();
    }
    let said: String = pieces.into_iter().map(|piece| if let Piece::Text(text) = piece { text } else { "" }).collect();
    if blank(&said) { BLIND.to_owned() } else { said.trim().to_owned() }
}

/// What a user said, for a reader who sees these. Of its pictures the first `past` are not shown; they are counted down.
pub(super) fn with_pictures<'a>(text: &str, pictures: &'a Pictures, past: &mut usize) -> Vec<Part<'a>> {
    let mut parts = Parts::default();
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => parts.text.push_str(text),
            Piece::Picture(_) if *past > 0 => {
                *past -= 1;
                parts.text.push_str(PAST);
            }
            Piece::Picture(source) => match (pictures.0.get(source), Source::of(source)) {
                (Some(Ok(picture)), _) => parts.show(Part::Picture(picture)),
                (Some(Err(unseen)), _) => parts.text.push_str(unseen.words()),
                (None, Source::Url(url)) => parts.show(Part::Url(url.to_owned())),
                (None, _) => parts.text.push_str(PAST),
            },
        }
    }
    parts.end(text)
}

#[derive(Default)]
struct Parts<'a> {
    done: Vec<Part<'a>>,
    text: String,
}

impl<'a> Parts<'a> {
    fn show(&mut self, picture: Part<'a>) {
        self.close();
        self.done.push(picture);
    }

    /// Providers refuse blank text beside a picture.
    fn close(&mut self) {
        let text = std::mem::take(&mut self.text);
        if !blank(&text) {
            self.done.push(Part::Text(text.trim().to_owned()));
        }
    }

    fn end(mut self, whole: &str) -> Vec<Part<'a>> {
        // A text without markers stays as it was written.
        if self.done.is_empty() && self.text == whole {
            return vec![Part::Text(self.text)];
        }
        self.close();
        self.done
    }
}

impl fmt::Debug for Pictures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.values()).finish()
    }
}
