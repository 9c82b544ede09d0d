//! Parses SKILL.md front matter and renders the skill section of a system prompt.
//!
//! A skill is a folder of instructions. The prompt tells an agent the name of each skill, its purpose, and where to
//! read it. The format is the open Agent Skills format: `SKILL.md` begins with YAML that contains `name` and
//! `description`.
//!
//! The same skills give the same section, byte for byte. This module reads no files; the caller passes their texts.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quell_protocol::display_text::shorten;
use serde::Deserialize;

/// The file in the folder of a skill.
pub const SKILL_FILE: &str = "SKILL.md";
pub const MAX_SKILLS: usize = 64;
/// Maximum bytes of all skills of an agent in a prompt.
const MAX_SECTION_BYTES: usize = 32 * 1024;
const MAX_NAME_CHARS: usize = 64;
const MAX_DESCRIPTION_CHARS: usize = 1024;
/// Maximum characters of file content in an error text.
const MAX_ERROR_CHARS: usize = 200;
/// The line that begins and ends the front matter.
const FRONT_MATTER_DELIMITER: &str = "---";
/// Maximum number of YAML values, with aliases expanded.
const MAX_YAML_NODES: usize = 4096;

/// Name and description of a skill, as in the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    name: String,
    description: String,
}

/// Why a skill is left out. The texts follow the path of its file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SkillError {
    #[error("does not begin with a line `---`; it needs YAML front matter with `name` and `description`")]
    MissingFrontMatter,
    #[error("has no second line `---` at the end of its front matter")]
    UnclosedFrontMatter,
    /// With the error of the parser.
    #[error("has invalid YAML front matter: {0}; quote a text that contains a colon or a #")]
    InvalidYaml(String),
    #[error("has no `{0}` in its front matter")]
    MissingKey(&'static str),
    #[error(
        "has the name {0:?}; a name has 1 to 64 characters: letters a to z, digits and single hyphens, and no hyphen at \
         either end"
    )]
    InvalidName(String),
    /// Name of the skill, and name of the folder.
    #[error("has the name {0:?} but is in the folder {1:?}; they must be the same")]
    FolderMismatch(String, String),
    /// With the number of characters.
    #[error("has a description of {0} characters; the maximum is 1024")]
    DescriptionTooLong(usize),
    /// Skills with earlier names fill the section.
    #[error("exceeds the limit of 64 skills or 32 KiB of descriptions per agent")]
    CatalogueFull,
}

/// The front matter of a file. Other keys are ignored.
#[derive(Deserialize)]
struct SkillFrontMatter {
    name: Option<String>,
    description: Option<String>,
}

impl Skill {
    /// Parses the beginning of a `SKILL.md` in the folder of this name.
    pub fn parse(folder: &str, text: &str) -> Result<Self, SkillError> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            budget: serde_saphyr::budget! { max_nodes: MAX_YAML_NODES, max_aliases: MAX_YAML_NODES },
        };
        let head: Option<SkillFrontMatter> = serde_saphyr::from_str_with_options(extract_front_matter(text)?, options)
            .map_err(|error| SkillError::InvalidYaml(shorten(&one_line(&error.to_string()), MAX_ERROR_CHARS, "...")))?;
        let (name, description) = head.map(|head| (head.name, head.description)).unwrap_or_default();
        let name = name.filter(|name| !name.is_empty()).ok_or(SkillError::MissingKey("name"))?;
        if !is_valid_skill_name(&name) {
            return Err(SkillError::InvalidName(shorten(&name, MAX_ERROR_CHARS, "...")));
        }
        if name != folder {
            return Err(SkillError::FolderMismatch(name, folder.to_owned()));
        }
        let description = one_line(&description.unwrap_or_default());
        match description.chars().count() {
            0 => Err(SkillError::MissingKey("description")),
            1..=MAX_DESCRIPTION_CHARS => Ok(Self { name, description }),
            long => Err(SkillError::DescriptionTooLong(long)),
        }
    }
}

/// The skills of an agent's prompt, all in one folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillCatalogue {
    folder: String,
    lines: BTreeMap<String, String>,
    remaining_bytes: usize,
}

impl SkillCatalogue {
    /// Creates an empty catalogue. `folder` is the path that the agent uses.
    pub fn new(folder: String) -> Self {
        Self { folder, lines: BTreeMap::new(), remaining_bytes: MAX_SECTION_BYTES }
    }

    /// Adds a skill. Earlier ones win when the section is full, so add them in order of their names.
    pub fn add(&mut self, skill: Skill) -> Result<(), SkillError> {
        let Skill { name, description } = skill;
        let line = format!("- {name}: {description} ({}/{name}/{SKILL_FILE})", self.folder);
        if self.lines.len() == MAX_SKILLS || line.len() >= self.remaining_bytes {
            return Err(SkillError::CatalogueFull);
        }
        self.remaining_bytes -= line.len() + 1;
        self.lines.insert(name, line);
        Ok(())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.lines.keys().map(String::as_str)
    }

    /// Appends the section to a system prompt. `tool` is the tool that reads the files. Without skills the prompt stays
    /// the same.
    #[must_use]
    pub fn append_to_prompt(&self, system: &str, tool: &str) -> String {
        if self.lines.is_empty() {
            return system.to_owned();
        }
        let mut prompt = if system.trim().is_empty() { String::new() } else { format!("{system}\n\n") };
        let folder = &self.folder;
        // Writing into a string cannot fail.
        let _ = write!(
            prompt,
            "# Skills\n\nA skill is a folder with instructions for one kind of task. Before you do what a skill below is for, read \
             its {SKILL_FILE} with the tool `{tool}` and follow it; files that it names are in its folder, {folder}/NAME.\n",
        );
        for line in self.lines.values() {
            prompt.push('\n');
            prompt.push_str(line);
        }
        prompt
    }
}

/// Extracts the first delimiter and the YAML behind it, so that line numbers of the parser match the file.
fn extract_front_matter(text: &str) -> Result<&str, SkillError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.split_inclusive('\n');
    let is_delimiter = |line: &str| line.trim_end() == FRONT_MATTER_DELIMITER;
    let first = lines.next().filter(|line| is_delimiter(line)).ok_or(SkillError::MissingFrontMatter)?;
    let mut end = first.len();
    for line in lines {
        if is_delimiter(line) {
            return Ok(text.get(..end).unwrap_or_default());
        }
        end += line.len();
    }
    Err(SkillError::UnclosedFrontMatter)
}

fn is_valid_skill_name(name: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    name.len() <= MAX_NAME_CHARS && name.split('-').all(is_part)
}

/// Joins the words of a text with single spaces. Control characters separate words too.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}
