//! Names and arguments of the slash commands; parse and complete them.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlashCommand {
    Stop,
    New,
    Model,
    Agents,
    Sessions,
    Runs,
    Prompts,
    Prompt,
    Resources,
    Resource,
    Approve,
    Deny,
    Hold,
    Queue,
    Undo,
    Help,
    Quit,
}

/// A command with its name, its argument, and the key of its help text.
pub(crate) struct SlashCommandSpec {
    pub(crate) command: SlashCommand,
    pub(crate) name: &'static str,
    pub(crate) argument: &'static str,
    pub(crate) about_key: &'static str,
}

const fn slash_command_spec(
    command: SlashCommand,
    name: &'static str,
    argument: &'static str,
    about: &'static str,
) -> SlashCommandSpec {
    SlashCommandSpec { command, name, argument, about_key: about }
}

/// In the order of the help.
pub(crate) const COMMANDS: [SlashCommandSpec; 17] = [
    slash_command_spec(SlashCommand::Stop, "/stop", "", "term.command.stop"),
    slash_command_spec(SlashCommand::New, "/new", "", "term.command.new"),
    slash_command_spec(SlashCommand::Model, "/model", "NAME", "term.command.model"),
    slash_command_spec(SlashCommand::Agents, "/agents", "", "term.command.agents"),
    slash_command_spec(SlashCommand::Sessions, "/sessions", "", "term.command.sessions"),
    slash_command_spec(SlashCommand::Runs, "/runs", "", "term.command.runs"),
    slash_command_spec(SlashCommand::Prompts, "/prompts", "", "term.command.prompts"),
    slash_command_spec(SlashCommand::Prompt, "/prompt", "SERVER NAME", "term.command.prompt"),
    slash_command_spec(SlashCommand::Resources, "/resources", "", "term.command.resources"),
    slash_command_spec(SlashCommand::Resource, "/resource", "SERVER URI", "term.command.resource"),
    slash_command_spec(SlashCommand::Approve, "/approve", "SCOPE", "term.command.approve"),
    slash_command_spec(SlashCommand::Deny, "/deny", "REASON", "term.command.deny"),
    slash_command_spec(SlashCommand::Hold, "/hold", "on|off", "term.command.hold"),
    slash_command_spec(SlashCommand::Queue, "/queue", "POLICY", "term.command.queue"),
    slash_command_spec(SlashCommand::Undo, "/undo", "RUN", "term.command.undo"),
    slash_command_spec(SlashCommand::Help, "/help", "", "term.command.help"),
    slash_command_spec(SlashCommand::Quit, "/quit", "", "term.command.quit"),
];

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputLine<'a> {
    Text,
    Command(SlashCommand, &'a str),
    /// Looks like a command, but there is none of this name.
    Unknown(&'a str),
}

/// Parses an input. Only a single line that starts with `/` and letters counts as a command, so that paths such as
/// `/etc/hosts is wrong` reach the model.
pub(crate) fn parse_line(text: &str) -> InputLine<'_> {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let looks_like_command =
        word.len() > 1 && word.starts_with('/') && word[1..].chars().all(|c| c.is_ascii_alphabetic());
    if !looks_like_command || text.contains('\n') {
        return InputLine::Text;
    }
    let lower = word.to_ascii_lowercase();
    match COMMANDS.iter().find(|known| known.name == lower) {
        Some(known) if known.argument.is_empty() && !rest.is_empty() => InputLine::Text,
        Some(known) => InputLine::Command(known.command, rest.trim()),
        None if rest.is_empty() => InputLine::Unknown(word),
        None => InputLine::Text,
    }
}

/// The commands that start with the text in the input.
pub(crate) fn matching_commands(text: &str) -> Vec<&'static SlashCommandSpec> {
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
    #[case("/stop", InputLine::Command(SlashCommand::Stop, ""))]
    #[case(" /STOP ", InputLine::Command(SlashCommand::Stop, ""))]
    #[case("/hold on", InputLine::Command(SlashCommand::Hold, "on"))]
    #[case("/model openai/gpt-5", InputLine::Command(SlashCommand::Model, "openai/gpt-5"))]
    #[case("/approve", InputLine::Command(SlashCommand::Approve, ""))]
    #[case("/approve pattern git *", InputLine::Command(SlashCommand::Approve, "pattern git *"))]
    #[case("/prompts", InputLine::Command(SlashCommand::Prompts, ""))]
    #[case("/prompt notes review topic=a", InputLine::Command(SlashCommand::Prompt, "notes review topic=a"))]
    #[case("/deny not on Friday", InputLine::Command(SlashCommand::Deny, "not on Friday"))]
    #[case("/undo", InputLine::Command(SlashCommand::Undo, ""))]
    #[case("/stpo", InputLine::Unknown("/stpo"))]
    #[case("/etc/hosts is wrong", InputLine::Text)]
    #[case("/stop that nonsense", InputLine::Text)]
    #[case("/usr is full", InputLine::Text)]
    #[case("/hold\non", InputLine::Text)]
    #[case("/", InputLine::Text)]
    #[case("stop", InputLine::Text)]
    fn lines_mean_what_people_mean(#[case] text: &str, #[case] line: InputLine<'_>) {
        assert_eq!(parse_line(text), line);
    }

    #[test]
    fn a_beginning_is_completed() {
        let names = |text: &str| matching_commands(text).iter().map(|known| known.name).collect::<Vec<_>>();
        assert_eq!(names("/s"), ["/stop", "/sessions"]);
        assert_eq!(names("/").len(), COMMANDS.len());
        assert!(names("/hold o").is_empty() && names("x").is_empty() && names("/x").is_empty());
    }
}
