//! Plain text output for IRC, for notifications, and for messages whose markup a network rejected.

use super::document::DocumentElement;
use super::markup::{Delimiters, MarkupSyntax, OpenLevel, TextPosition, list_bullet};

/// Plain text; each link is followed by its address.
pub(super) struct PlainMarkup;

impl MarkupSyntax for PlainMarkup {
    fn delimiters(&self, element: &DocumentElement, _: &[OpenLevel]) -> Option<Delimiters> {
        match element {
            DocumentElement::Quote => Some(Delimiters::line_prefixed("> ")),
            DocumentElement::Item(number) => Some(Delimiters::list_item(list_bullet(*number))),
            DocumentElement::Cell { first: false, .. } => Some(Delimiters::new(" | ", "")),
            DocumentElement::List(_)
            | DocumentElement::Table { .. }
            | DocumentElement::Row(_)
            | DocumentElement::Cell { first: true, .. } => Some(Delimiters::default()),
            _ => None,
        }
    }

    fn write_text(&self, text: &str, _: TextPosition, out: &mut String) {
        out.push_str(&text.replace('\t', "    "));
    }

    fn continuation_mark(&self) -> &'static str {
        "… "
    }
}
