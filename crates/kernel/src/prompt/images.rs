//! Selects the images of a request and the placeholders of those left out.
//!
//! A sealed turn shows the same images in every later request, until there are more than one request takes. Then the
//! oldest are hidden, several at a time, so that the beginning of the requests seldom changes. Images of tool results
//! count too, in the order in which they came.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::visible_turns;
use crate::image::{Image, ImageSource, ImageUnavailable, MarkedText, split_markers};
use crate::turn::{CallResult, Turn, TurnDraft, is_blank};

pub const MAX_REQUEST_IMAGES: usize = 20;
/// Number of the oldest images that are hidden at once when there are too many.
const EVICTION_BATCH: usize = 5;

/// Replaces a message of images only, for a model without vision.
const UNSEEN_IMAGE_TEXT: &str = "(a picture, which this model cannot see)";
/// Replaces an image that newer ones displaced, that a model refused, or that the caller did not load.
const HIDDEN_IMAGE_TEXT: &str = "(a picture stood here; it is not shown any more)";

#[derive(Debug, Clone, Copy)]
pub enum Vision<'a> {
    /// The model reads text only. Markers are removed; a message of markers only gets a placeholder.
    TextOnly,
    Images(&'a ImageSet),
}

/// The images that were loaded for a prompt, by source. `Debug` does not print their data.
#[derive(Clone, Default)]
pub struct ImageSet(BTreeMap<String, Result<Image, ImageUnavailable>>);

/// Number and size of the images of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImageUsage {
    pub count: usize,
    /// Bytes of base64 in the request.
    pub bytes: usize,
}

/// A part of a user message or tool result, to be rendered by a dialect.
#[derive(Debug)]
pub enum PromptPart<'a> {
    Text(String),
    Image(&'a Image),
    Url(String),
}

impl ImageSet {
    /// True when this source was loaded, successfully or not.
    pub fn contains(&self, source: &str) -> bool {
        self.0.contains_key(source)
    }

    /// Adds a source, unless it is there already: a request must begin like the one before it.
    pub fn insert_if_absent(&mut self, source: String, found: Result<Image, ImageUnavailable>) {
        self.0.entry(source).or_insert(found);
    }

    pub fn base64_bytes(&self) -> usize {
        self.0.values().flatten().map(|image| image.base64().len()).sum()
    }
}

/// Sources of the images that a prompt shows, oldest first. The caller loads them into an [`ImageSet`].
pub fn wanted_image_sources(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> Vec<String> {
    let (mut all, hidden) = list_images(turns, draft);
    all.drain(..hidden).for_each(drop);
    all.into_iter().map(str::to_owned).collect()
}

/// Number and size of the images that a request shows.
pub fn image_usage(turns: &[Arc<Turn>], draft: Option<&TurnDraft>, vision: Vision<'_>) -> ImageUsage {
    let Vision::Images(images) = vision else { return ImageUsage::default() };
    let (all, hidden) = list_images(turns, draft);
    let mut usage = ImageUsage::default();
    for source in all.into_iter().skip(hidden) {
        match (images.0.get(source), ImageSource::parse(source)) {
            (Some(Ok(image)), _) => {
                usage.count += 1;
                usage.bytes += image.base64().len();
            }
            (None, ImageSource::Url(_)) => usage.count += 1,
            (Some(Err(_)) | None, _) => {}
        }
    }
    usage
}

/// How many of the oldest images are not shown.
pub(super) fn hidden_image_count(turns: &[Arc<Turn>], draft: Option<&TurnDraft>) -> usize {
    list_images(turns, draft).1
}

/// The sources of all images of a prompt, oldest first, and how many of the oldest are not shown.
fn list_images<'a>(turns: &'a [Arc<Turn>], draft: Option<&'a TurnDraft>) -> (Vec<&'a str>, usize) {
    let (mut all, mut refused) = (Vec::new(), 0);
    for turn in visible_turns(turns, draft).0 {
        let sources = turn.image_sources();
        if !turn.is_hidden_from_models() {
            all.extend(sources);
        } else if turn.is_vision_failure() && sources.count() == 0 {
            // The model refused the older images, and would refuse them again.
            refused = all.len();
        }
    }
    all.extend(draft.into_iter().flat_map(TurnDraft::image_sources));
    let rest = all.len() - refused;
    let surplus = rest.saturating_sub(MAX_REQUEST_IMAGES).next_multiple_of(EVICTION_BATCH).min(rest);
    (all, refused + surplus)
}

/// The images of a result, for a model that sees images. Hides the next `hidden` images and counts them down.
pub(super) fn result_images<'a>(result: &CallResult, images: &'a ImageSet, hidden: &mut usize) -> Vec<PromptPart<'a>> {
    let part = |source: &String| {
        if *hidden > 0 {
            *hidden -= 1;
            return PromptPart::Text(HIDDEN_IMAGE_TEXT.to_owned());
        }
        match (images.0.get(source), ImageSource::parse(source)) {
            (Some(Ok(image)), _) => PromptPart::Image(image),
            (Some(Err(unavailable)), _) => PromptPart::Text(unavailable.placeholder().to_owned()),
            (None, ImageSource::Url(url)) => PromptPart::Url(url.to_owned()),
            (None, _) => PromptPart::Text(HIDDEN_IMAGE_TEXT.to_owned()),
        }
    };
    result.pictures.iter().map(part).collect()
}

/// The text of a result, for a model without vision.
pub(super) fn result_text(result: &CallResult) -> Cow<'_, str> {
    match result.pictures.len() {
        0 => Cow::Borrowed(&result.output),
        1 => Cow::Owned(format!("{}\n{UNSEEN_IMAGE_TEXT}", result.output)),
        count => Cow::Owned(format!("{}\n({count} pictures, which this model cannot see)", result.output)),
    }
}

/// The text of a user, for a model without vision.
pub(super) fn text_without_images(text: &str) -> String {
    let pieces = split_markers(text);
    if !pieces.iter().any(|piece| matches!(piece, MarkedText::Image(_))) {
        return text.to_owned();
    }
    let without_markers: String =
        pieces.into_iter().map(|piece| if let MarkedText::Text(text) = piece { text } else { "" }).collect();
    if is_blank(&without_markers) { UNSEEN_IMAGE_TEXT.to_owned() } else { without_markers.trim().to_owned() }
}

/// The text of a user, for a model that sees images. Hides the next `hidden` images and counts them down.
pub(super) fn text_with_images<'a>(text: &str, images: &'a ImageSet, hidden: &mut usize) -> Vec<PromptPart<'a>> {
    let mut parts = PromptPartBuilder::default();
    for piece in split_markers(text) {
        match piece {
            MarkedText::Text(text) => parts.text.push_str(text),
            MarkedText::Image(_) if *hidden > 0 => {
                *hidden -= 1;
                parts.text.push_str(HIDDEN_IMAGE_TEXT);
            }
            MarkedText::Image(source) => match (images.0.get(source), ImageSource::parse(source)) {
                (Some(Ok(image)), _) => parts.push_image(PromptPart::Image(image)),
                (Some(Err(unavailable)), _) => parts.text.push_str(unavailable.placeholder()),
                (None, ImageSource::Url(url)) => parts.push_image(PromptPart::Url(url.to_owned())),
                (None, _) => parts.text.push_str(HIDDEN_IMAGE_TEXT),
            },
        }
    }
    parts.finish(text)
}

#[derive(Default)]
struct PromptPartBuilder<'a> {
    done: Vec<PromptPart<'a>>,
    text: String,
}

impl<'a> PromptPartBuilder<'a> {
    fn push_image(&mut self, image: PromptPart<'a>) {
        self.flush_text();
        self.done.push(image);
    }

    /// Drops blank text: providers refuse it beside an image.
    fn flush_text(&mut self) {
        let text = std::mem::take(&mut self.text);
        if !is_blank(&text) {
            self.done.push(PromptPart::Text(text.trim().to_owned()));
        }
    }

    fn finish(mut self, whole: &str) -> Vec<PromptPart<'a>> {
        // Keep a text without markers unchanged.
        if self.done.is_empty() && self.text == whole {
            return vec![PromptPart::Text(self.text)];
        }
        self.flush_text();
        self.done
    }
}

impl fmt::Debug for ImageSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.values()).finish()
    }
}
