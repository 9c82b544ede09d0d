//! Texts that networks send and show: one printable line each.

use quell_protocol::Attachment;
use quell_protocol::display_text::replace_controls;

const MAX_LINE_CHARS: usize = 200;
const MAX_FILE_NAME_CHARS: usize = 100;

/// A text from the network as one printable line of limited length.
pub(crate) fn single_line(text: &str) -> String {
    replace_controls(text, MAX_LINE_CHARS).trim().to_owned()
}

/// A valid file name, even if the model chose an invalid one.
pub(crate) fn safe_file_name(attachment: &Attachment) -> String {
    let name = attachment.name.as_deref().unwrap_or_default();
    let name = single_line(name.rsplit(['/', '\\']).next().unwrap_or_default());
    let name: String = name.chars().take(MAX_FILE_NAME_CHARS).collect();
    if name.trim_matches('.').is_empty() { "file".to_owned() } else { name }
}
