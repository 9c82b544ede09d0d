//! Render the instructions of a project, its `AGENTS.md` files, for a system prompt.
//!
//! The same files give the same section, byte for byte. This module reads no files; the caller passes their texts.

use std::fmt::Write as _;

/// The file with instructions for agents in a directory.
pub const INSTRUCTIONS_FILE: &str = "AGENTS.md";
/// Maximum bytes of all files together.
pub const MAX_INSTRUCTIONS_BYTES: usize = 32 * 1024;

/// Instructions in the order of their files: the nearest to the workdir first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProjectInstructions {
    files: Vec<InstructionsFile>,
    bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstructionsFile {
    /// The path as the agent can use it.
    pub path: String,
    text: String,
    /// Bytes of the file that are in the prompt.
    pub bytes: usize,
    pub is_cut: bool,
}

impl ProjectInstructions {
    /// Adds a file that is farther from the workdir than those before. An empty one is left out; what exceeds the limit
    /// is cut.
    pub fn add(&mut self, path: String, text: &str) {
        let text: String = text.trim().chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
        let room = MAX_INSTRUCTIONS_BYTES - self.bytes;
        let kept = &text[..text.floor_char_boundary(room)];
        if kept.is_empty() {
            return;
        }
        self.bytes += kept.len();
        let is_cut = kept.len() < text.len();
        self.files.push(InstructionsFile { path, bytes: kept.len(), text: kept.to_owned(), is_cut });
    }

    pub fn is_full(&self) -> bool {
        self.bytes >= MAX_INSTRUCTIONS_BYTES
    }

    pub fn files(&self) -> &[InstructionsFile] {
        &self.files
    }

    /// The system prompt with these instructions at its end; unchanged if there are none.
    pub fn append_to_prompt(&self, prompt: &str) -> String {
        if self.files.is_empty() {
            return prompt.to_owned();
        }
        let mut out = prompt.trim_end().to_owned();
        if !out.is_empty() {
            out.push_str("\n\n");
        }
        out.push_str(
            "# Project instructions\n\nThe people of this project wrote the following for agents. Where two files disagree, the \
             first one counts; what the user asks for counts more than any of them. Another AGENTS.md in a directory below \
             counts for the files there: read it before you change them.",
        );
        for InstructionsFile { path, text, is_cut, .. } in &self.files {
            let _ = write!(out, "\n\n## From {path}\n\n{text}");
            if *is_cut {
                let _ = write!(out, "\n[cut here; the rest is in {path}]");
            }
        }
        out.push_str("\n\n[end of the project instructions]");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stand_in_order_and_the_same_ones_give_the_same_prompt() {
        let mut instructions = ProjectInstructions::default();
        assert_eq!(instructions.append_to_prompt("Be brief.\n"), "Be brief.\n");
        instructions.add("AGENTS.md".into(), "\nRun the tests.\r\n\u{1b}[31m\n");
        instructions.add("../AGENTS.md".into(), "Use tabs.");
        instructions.add("../../AGENTS.md".into(), " \n");
        let prompt = instructions.append_to_prompt("Be brief.\n");
        let at = |text: &str| prompt.find(text).unwrap();
        assert!(prompt.starts_with("Be brief.\n\n# Project instructions\n\n"));
        assert!(at("## From AGENTS.md\n\nRun the tests.\n[31m") < at("## From ../AGENTS.md\n\nUse tabs."));
        assert!(!prompt.contains("../../AGENTS.md") && !prompt.contains('\u{1b}'));
        assert_eq!(prompt, instructions.clone().append_to_prompt("Be brief.\n"));
    }

    #[test]
    fn the_nearest_file_gets_the_room() {
        let mut instructions = ProjectInstructions::default();
        instructions.add("AGENTS.md".into(), &"\u{fc}".repeat(MAX_INSTRUCTIONS_BYTES));
        instructions.add("../AGENTS.md".into(), "far");
        assert!(instructions.is_full());
        let [near] = instructions.files() else { panic!("{:?}", instructions.files()) };
        assert!(near.is_cut && near.bytes == MAX_INSTRUCTIONS_BYTES);
        assert!(instructions.append_to_prompt("").contains("[cut here; the rest is in AGENTS.md]"));
    }
}
