//! The slash commands: their names, what completes them, and what a line means.

/// A command that a person can type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Stop,
    New,
    Model,
    Agents,
    Sessions,
    Runs,
    Approve,
    Deny,
    Hold,
    Queue,
    Help,
    Quit,
}

/// A command with its name, what may follow it, and the key of the text that says what it does.
pub(super) struct Known {
    pub(super) command: Command,
    pub(super) name: &'static str,
    pub(super) argument: &'static str,
    pub(super) about: &'static str,
}

const fn known(command: Command, name: &'static str, argument: &'static str, about: &'static str) -> Known {
    Known { command, name, argument, about }
}

/// All of them, in the order of help.
pub(super) const COMMANDS: [Known; 12] = [
    known(Command::Stop, "/stop", "", "term.command.stop"),
    known(Command::New, "/new", "", "term.command.new"),
    known(Command::Model, "/model", "NAME", "term.command.model"),
    known(Command::Agents, "/agents", "", "term.command.agents"),
    known(Command::Sessions, "/sessions", "", "term.command.sessions"),
    known(Command::Runs, "/runs", "", "term.command.runs"),
    known(Command::Approve, "/approve", "", "term.command.approve"),
    known(Command::Deny, "/deny", "", "term.command.deny"),
    known(Command::Hold, "/hold", "on|off", "term.command.hold"),
    known(Command::Queue, "/queue", "POLICY", "term.command.queue"),
    known(Command::Help, "/help", "", "term.command.help"),
    known(Command::Quit, "/quit", "", "term.command.quit"),
];

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// A message.
    Text,
    Command(Command, &'a str),
    /// It begins like a command and is none.
    Unknown(&'a str),
}

/// Reads a line. Only a single line that begins with `/` and a letter is taken for a command, so that paths such as
/// `/etc/hosts is wrong` reach the model.
pub(super) fn read(text: &str) -> Line<'_> {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let looks_so = word.len() > 1 && word.starts_with('/') && word[1..].chars().all(|c| c.is_ascii_alphabetic());
    if !looks_so || text.contains('\n') {
        return Line::Text;
    }
    let lower = word.to_ascii_lowercase();
    match COMMANDS.iter().find(|known| known.name == lower) {
        Some(known) if known.argument.is_empty() && !rest.is_empty() => Line::Text,
        Some(known) => Line::Command(known.command, rest.trim()),
        None if rest.is_empty() => Line::Unknown(word),
        None => Line::Text,
    }
}

/// The commands that complete what stands in the input.
pub(super) fn completions(text: &str) -> Vec<&'static Known> {
    if !text.starts_with('/') || text.contains(char::is_whitespace) {
        return Vec::new();
    }
    let lower = text.to_ascii_lowercase();
    COMMANDS.iter().filter(|known| known.name.starts_with(&lower)).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/stop", Line::Command(Command::Stop, ""))]
    #[case(" /STOP ", Line::Command(Command::Stop, ""))]
    #[case("/hold on", Line::Command(Command::Hold, "on"))]
    #[case("/model openai/gpt-5", Line::Command(Command::Model, "openai/gpt-5"))]
    #[case("/stpo", Line::Unknown("/stpo"))]
    #[case("/etc/hosts is wrong", Line::Text)]
    #[case("/stop that nonsense", Line::Text)]
    #[case("/usr is full", Line::Text)]
    #[case("/hold\non", Line::Text)]
    #[case("/", Line::Text)]
    #[case("stop", Line::Text)]
    fn lines_mean_what_people_mean(#[case] text: &str, #[case] line: Line<'_>) {
        assert_eq!(read(text), line);
    }

    #[test]
    fn a_beginning_is_completed() {
        let names = |text: &str| completions(text).iter().map(|known| known.name).collect::<Vec<_>>();
        assert_eq!(names("/s"), ["/stop", "/sessions"]);
        assert_eq!(names("/").len(), COMMANDS.len());
        assert!(names("/hold o").is_empty() && names("x").is_empty() && names("/x").is_empty());
    }
}
