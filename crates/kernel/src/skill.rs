//! Skills: folders of instructions, of which an agent is told the names, what each is for, and where to read it. The form is that
//! of the open Agent Skills format: `SKILL.md` begins with YAML that holds `name` and `description`.
//!
//! The section of the prompt is the same for the same skills, byte for byte. It reads no file; whoever can, hands in the texts.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

/// The file in the folder of a skill.
pub const FILE: &str = "SKILL.md";
/// Skills of one agent.
pub const MOST: usize = 64;
/// Bytes that all of them may take in a prompt.
const ROOM: usize = 32 * 1024;
/// Characters of a name.
const LONGEST_NAME: usize = 64;
/// Characters of a description.
const LONGEST_DESCRIPTION: usize = 1024;
/// Characters of what a file holds in the words of its problem.
const LONGEST_SHOWN: usize = 200;
/// Begins and ends the YAML.
const BORDER: &str = "---";
/// Values in the YAML, with all that stands for another one written out.
const MOST_NODES: usize = 4096;

/// What an agent is told of one skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    name: String,
    description: String,
}

/// Why a skill is left out, in words that follow the path of its file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSkill {
    /// Its first line is another one.
    #[error("does not begin with a line `---`, between which and the next one `name` and `description` stand")]
    NoHead,
    /// The second border is missing.
    #[error("has no second line `---`, which ends its head")]
    OpenHead,
    /// The parser's word.
    #[error("has a head that is no YAML as it should be: {0}; a text with a colon or a # in it needs quotes")]
    Yaml(String),
    /// A needed key.
    #[error("has no `{0}` in its head")]
    Missing(&'static str),
    /// The name as it is.
    #[error(
        "has the name {0:?}; a name has 1 to 64 of the letters a to z, digits and single hyphens, and begins and ends with no \
         hyphen"
    )]
    Name(String),
    /// The name as it is, and the folder's.
    #[error("has the name {0:?} and stands in the folder {1:?}; they have to be the same")]
    Misplaced(String, String),
    /// How many characters it has.
    #[error("has a description of {0} characters; the most is 1024")]
    Long(usize),
    /// Others, which come before it, fill the section.
    #[error("has no place any more: 64 skills, or 32 KiB of descriptions, is the most")]
    NoPlace,
}

/// The head of a file; other keys are others' business.
#[derive(Deserialize)]
struct Head {
    name: Option<String>,
    description: Option<String>,
}

impl Skill {
    /// Reads the beginning of a `SKILL.md` that stands in this folder.
    ///
    /// # Errors
    /// [`BadSkill`] says what is wrong with it.
    pub fn parse(folder: &str, text: &str) -> Result<Self, BadSkill> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            budget: serde_saphyr::budget! { max_nodes: MOST_NODES, max_aliases: MOST_NODES },
        };
        let head: Option<Head> = serde_saphyr::from_str_with_options(head_of(text)?, options)
            .map_err(|error| BadSkill::Yaml(short(&one_line(&error.to_string()))))?;
        let (name, description) = head.map(|head| (head.name, head.description)).unwrap_or_default();
        let name = name.filter(|name| !name.is_empty()).ok_or(BadSkill::Missing("name"))?;
        if !is_name(&name) {
            return Err(BadSkill::Name(short(&name)));
        }
        if name != folder {
            return Err(BadSkill::Misplaced(name, folder.to_owned()));
        }
        let description = one_line(&description.unwrap_or_default());
        match description.chars().count() {
            0 => Err(BadSkill::Missing("description")),
            1..=LONGEST_DESCRIPTION => Ok(Self { name, description }),
            long => Err(BadSkill::Long(long)),
        }
    }
}

/// The skills that an agent is told of, all in one folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalogue {
    folder: String,
    lines: BTreeMap<String, String>,
    room: usize,
}

impl Catalogue {
    /// An empty one for this folder, as the agent is to write it.
    #[must_use]
    pub fn new(folder: String) -> Self {
        Self { folder, lines: BTreeMap::new(), room: ROOM }
    }

    /// Takes in one more. What comes first has the place, so they are to be handed in by their names.
    ///
    /// # Errors
    /// [`BadSkill::NoPlace`].
    pub fn add(&mut self, skill: Skill) -> Result<(), BadSkill> {
        let Skill { name, description } = skill;
        let line = format!("- {name}: {description} ({}/{name}/{FILE})", self.folder);
        if self.lines.len() == MOST || line.len() >= self.room {
            return Err(BadSkill::NoPlace);
        }
        self.room -= line.len() + 1;
        self.lines.insert(name, line);
        Ok(())
    }

    /// What they are called.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.lines.keys().map(String::as_str)
    }

    /// A system prompt with the section behind it; `tool` is what the agent reads the files with. Without skills it is as it was.
    #[must_use]
    pub fn prompt(&self, system: &str, tool: &str) -> String {
        if self.lines.is_empty() {
            return system.to_owned();
        }
        let mut prompt = if system.trim().is_empty() { String::new() } else { format!("{system}\n\n") };
        let folder = &self.folder;
        // Writing into a string cannot fail.
        let _ = write!(
            prompt,
            "# Skills\n\nA skill is a folder with instructions for one kind of task. Before you do what a skill below is for, read \
             its {FILE} with the tool `{tool}` and follow it; files that it names are in its folder, {folder}/NAME.\n",
        );
        for line in self.lines.values() {
            prompt.push('\n');
            prompt.push_str(line);
        }
        prompt
    }
}

/// The first border and what stands between it and the second one: so the parser counts lines as the file does.
fn head_of(text: &str) -> Result<&str, BadSkill> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.split_inclusive('\n');
    let is_border = |line: &str| line.trim_end() == BORDER;
    let first = lines.next().filter(|line| is_border(line)).ok_or(BadSkill::NoHead)?;
    let mut end = first.len();
    for line in lines {
        if is_border(line) {
            return Ok(text.get(..end).unwrap_or_default());
        }
        end += line.len();
    }
    Err(BadSkill::OpenHead)
}

fn is_name(name: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    name.len() <= LONGEST_NAME && name.split('-').all(is_part)
}

/// As much as a person needs to find it.
fn short(text: &str) -> String {
    let mut letters = text.chars();
    let beginning: String = letters.by_ref().take(LONGEST_SHOWN).collect();
    if letters.next().is_some() { format!("{beginning}...") } else { beginning }
}

/// On one line, whatever separates its words.
fn one_line(text: &str) -> String {
    let words = text.split(|letter: char| letter.is_whitespace() || letter.is_control());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}
