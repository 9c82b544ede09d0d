//! Parse a patch.

use super::{PatchChunk, PatchError, PatchLine, PatchOperation};

const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const ADD: &str = "*** Add File:";
const DELETE: &str = "*** Delete File:";
const UPDATE: &str = "*** Update File:";
const MOVE: &str = "*** Move to:";
const END_OF_FILE: &str = "*** End of File";

/// Characters of a wrong line in an error.
const SHOWN_CHARS: usize = 120;

/// Parses the whole patch. Lines around it, such as a code fence or a here-document, are left out.
///
/// # Errors
/// [`PatchError`] names the line.
pub fn parse_patch(patch: &str) -> Result<Vec<PatchOperation>, PatchError> {
    let lines: Vec<&str> = patch.lines().collect();
    let begin = lines.iter().position(|line| line.trim() == BEGIN).ok_or(PatchError::NoBegin)?;
    let end = lines.iter().rposition(|line| line.trim() == END).filter(|end| *end > begin).ok_or(PatchError::NoEnd)?;
    let mut reader = PatchReader { lines: &lines[..end], at: begin + 1 };
    let mut operations = Vec::new();
    while let Some(line) = reader.next() {
        if !line.trim().is_empty() {
            operations.push(reader.operation(line)?);
        }
    }
    if operations.is_empty() { Err(PatchError::Empty) } else { Ok(operations) }
}

struct PatchReader<'a> {
    lines: &'a [&'a str],
    at: usize,
}

impl<'a> PatchReader<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let line = self.lines.get(self.at).copied()?;
        self.at += 1;
        Some(line)
    }

    /// The next line, unless an operation begins there.
    fn next_of_operation(&mut self) -> Option<&'a str> {
        let line = self.lines.get(self.at).copied()?;
        if [ADD, DELETE, UPDATE].iter().any(|marker| line.starts_with(marker)) {
            return None;
        }
        self.next()
    }

    fn operation(&mut self, line: &str) -> Result<PatchOperation, PatchError> {
        let trimmed = line.trim();
        if let Some(path) = trimmed.strip_prefix(ADD) {
            return Ok(PatchOperation::Add { path: self.path(path)?, content: self.added_content()? });
        }
        if let Some(path) = trimmed.strip_prefix(DELETE) {
            return Ok(PatchOperation::Delete { path: self.path(path)? });
        }
        let Some(path) = trimmed.strip_prefix(UPDATE) else {
            return Err(PatchError::NotAnOperation { line: self.at, text: shortened(line) });
        };
        let path = self.path(path)?;
        let next = self.lines.get(self.at).map(|line| line.trim());
        let move_to = match next.and_then(|line| line.strip_prefix(MOVE)) {
            Some(target) => {
                self.at += 1;
                Some(self.path(target)?)
            }
            None => None,
        };
        let chunks = self.chunks()?;
        if chunks.is_empty() && move_to.is_none() {
            return Err(PatchError::NoChunks(path));
        }
        Ok(PatchOperation::Update { path, move_to, chunks })
    }

    fn path(&self, text: &str) -> Result<String, PatchError> {
        let path = text.trim();
        if path.is_empty() { Err(PatchError::NoPath { line: self.at }) } else { Ok(path.to_owned()) }
    }

    fn added_content(&mut self) -> Result<String, PatchError> {
        let mut content = String::new();
        while let Some(line) = self.next_of_operation() {
            match line.strip_prefix('+') {
                Some(added) => {
                    content.push_str(added);
                    content.push('\n');
                }
                None if line.trim().is_empty() && self.is_before_operation() => {}
                None => {
                    return Err(PatchError::UnexpectedLine { line: self.at, text: shortened(line), expected: "`+`" });
                }
            }
        }
        Ok(content)
    }

    fn chunks(&mut self) -> Result<Vec<PatchChunk>, PatchError> {
        let mut chunks: Vec<PatchChunk> = Vec::new();
        while let Some(line) = self.next_of_operation() {
            if let Some(anchor) = line.strip_prefix("@@") {
                let anchor = anchor.trim_end_matches("@@").trim();
                // The numbers of a unified diff say nothing that could be relied on.
                let is_numbers = anchor.starts_with('-') && anchor.contains('+');
                let anchor = Some(anchor).filter(|anchor| !anchor.is_empty() && !is_numbers).map(str::to_owned);
                chunks.push(PatchChunk { anchor, ..PatchChunk::default() });
                continue;
            }
            if line.trim() == END_OF_FILE {
                if let Some(last) = chunks.last_mut() {
                    last.is_at_end = true;
                }
                continue;
            }
            if line.trim().is_empty() && self.is_before_operation() {
                continue;
            }
            let line = self.chunk_line(line)?;
            match chunks.last_mut() {
                Some(last) => last.lines.push(line),
                None => chunks.push(PatchChunk { lines: vec![line], ..PatchChunk::default() }),
            }
        }
        chunks.retain(|chunk| !chunk.lines.is_empty());
        Ok(chunks)
    }

    fn chunk_line(&self, line: &str) -> Result<PatchLine, PatchError> {
        let mut characters = line.chars();
        let first = characters.next();
        let rest = characters.as_str().to_owned();
        match first {
            Some(' ') => Ok(PatchLine::Context(rest)),
            Some('-') => Ok(PatchLine::Remove(rest)),
            Some('+') => Ok(PatchLine::Add(rest)),
            // Models leave the space of an empty context line out.
            None => Ok(PatchLine::Context(String::new())),
            Some(_) => {
                let expected = "a space, `-`, `+` or `@@`";
                Err(PatchError::UnexpectedLine { line: self.at, text: shortened(line), expected })
            }
        }
    }

    /// Whether only empty lines come before the next operation or the end.
    fn is_before_operation(&self) -> bool {
        let rest = self.lines[self.at..].iter().find(|line| !line.trim().is_empty());
        rest.is_none_or(|line| [ADD, DELETE, UPDATE].iter().any(|marker| line.starts_with(marker)))
    }
}

fn shortened(line: &str) -> String {
    line.chars().take(SHOWN_CHARS).collect()
}
