//! Parse and apply patches in the form that models are trained on: `*** Begin Patch`, `*** Update File:` and so on.

mod apply;
mod parse;
#[cfg(test)]
mod tests;

pub use apply::apply_chunks;
pub use parse::parse_patch;

/// What a patch does with one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchOperation {
    Add {
        path: String,
        content: String,
    },
    Delete {
        path: String,
    },
    Update {
        path: String,
        /// The new path, if the file is moved.
        move_to: Option<String>,
        chunks: Vec<PatchChunk>,
    },
}

/// One changed place of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PatchChunk {
    /// The text after `@@`: a line above the place, such as the head of a function.
    pub anchor: Option<String>,
    pub lines: Vec<PatchLine>,
    /// The place is at the end of the file.
    pub is_at_end: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchLine {
    Context(String),
    Remove(String),
    Add(String),
}

impl PatchLine {
    /// The line as the file has it before the patch.
    fn old(&self) -> Option<&str> {
        match self {
            Self::Context(line) | Self::Remove(line) => Some(line),
            Self::Add(_) => None,
        }
    }
}

/// Why a patch cannot be read or applied. The texts are for the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    #[error("it does not begin with a line `*** Begin Patch`")]
    NoBegin,
    #[error("it does not end with a line `*** End Patch`")]
    NoEnd,
    #[error("it changes no file")]
    Empty,
    #[error(
        "line {line} of it, {text:?}, is no `*** Add File: PATH`, `*** Update File: PATH` or `*** Delete File: PATH`"
    )]
    NotAnOperation { line: usize, text: String },
    #[error("line {line} of it, {text:?}, does not begin with {expected}")]
    UnexpectedLine { line: usize, text: String, expected: &'static str },
    #[error("line {line} of it names no path")]
    NoPath { line: usize },
    #[error("the update of {0:?} changes nothing")]
    NoChunks(String),
    #[error("the line {0:?} after @@ is not in the file, or only above the place before")]
    AnchorNotFound(String),
    /// The lines that were searched, and the first line, from 1, at which the search began.
    #[error("these lines are not in the file from line {from} on:\n{wanted}")]
    ChunkNotFound { wanted: String, from: usize },
    #[error(
        "these lines stand in several places of the file (lines {}), if white space at their ends is ignored; write them \
         exactly, or give more lines around them:\n{wanted}",
        lines.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    ChunkAmbiguous { wanted: String, lines: Vec<usize> },
}
