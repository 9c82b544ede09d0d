//! What a message asks of Quell itself (row D5): no model is called for it. It knows neither who may ask for what nor whether
//! there is such a provider or model.

use quell_protocol::api::RunView;

/// What is shown for [`Command::Help`].
pub const HELP: &str = "\
/stop - stop what I am doing for you here
/stop all - stop everything that runs in this channel (operators)
/new - begin a new conversation
/status - what I am doing
/model - the model of this conversation
/model NAME - use another model in this conversation
/models - the providers
/models PROVIDER - use another provider in this conversation
/help - this list";

/// What [`Command::Status`] says of a conversation's runs that are not over, and of its model.
#[must_use]
pub fn status(runs: &[RunView], model: &str) -> String {
    let (working, waiting): (Vec<_>, Vec<_>) = runs.iter().partition(|run| run.state != "queued");
    let work = match working.first() {
        None => "Nothing is running here".to_owned(),
        Some(run) => format!("Working since {} (step {}, {} processes)", run.accepted_at, run.steps, run.processes),
    };
    let queue = if waiting.is_empty() { String::new() } else { format!(", {} waiting", waiting.len()) };
    format!("{work}{queue}. Model: {model}. /stop ends it.")
}

/// The longest name of a provider or a model: longer ones are no names.
const LONGEST_NAME: usize = 200;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `/models`: say which providers there are.
    Providers,
    /// `/models PROVIDER`: this conversation is for another provider from now on.
    UseProvider(String),
    /// `/model`: say which model this conversation is for.
    Model,
    /// `/model NAME`: this conversation is for another model from now on.
    UseModel(String),
    /// `/new`: empty the history of this conversation.
    New,
    /// `/stop`.
    Stop(StopReach),
    /// `/status`: say what is going on here.
    Status,
    /// `/help`, and every command that is written wrong.
    Help,
}

/// How far a stop goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReach {
    /// What the sender asked for here.
    Own,
    /// Everything in this channel, for operators.
    All,
}

impl Command {
    /// The command that a text is, as a whole; none when it is no command, though it may begin with a slash. `/status@NAME` is
    /// `/status`, as networks write it in groups: whether the name is ours the network has found out before.
    ///
    /// A command with words that it does not take is [`Command::Help`] and does nothing, so that neither `/new plan` throws a
    /// conversation away nor `/model --list` names a model.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let name = words.next()?.strip_prefix('/')?;
        let name = match name.split_once('@') {
            Some((_, account)) if !is_account(account) => return None,
            Some((name, _)) => name,
            None => name,
        };
        let (first, rest) = (words.next(), words.next());
        let named = match (first, rest) {
            (None, _) => Named::Nothing,
            (Some(word), None) if is_name(word) => Named::One(word),
            (Some(_), _) => Named::Wrong,
        };
        let command = match name.to_ascii_lowercase().as_str() {
            "models" => named.choose(Self::Providers, Self::UseProvider),
            "model" => named.choose(Self::Model, Self::UseModel),
            "stop" => match named {
                Named::Nothing => Self::Stop(StopReach::Own),
                Named::One(word) if word.eq_ignore_ascii_case("all") => Self::Stop(StopReach::All),
                Named::One(_) | Named::Wrong => Self::Help,
            },
            "new" => named.alone(Self::New),
            "status" => named.alone(Self::Status),
            "help" => Self::Help,
            _ => return None,
        };
        Some(command)
    }
}

/// What stands behind the name of a command.
enum Named<'a> {
    Nothing,
    One(&'a str),
    Wrong,
}

impl Named<'_> {
    fn choose(self, nothing: Command, one: fn(String) -> Command) -> Command {
        match self {
            Self::Nothing => nothing,
            Self::One(name) => one(name.to_owned()),
            Self::Wrong => Command::Help,
        }
    }

    fn alone(self, command: Command) -> Command {
        match self {
            Self::Nothing => command,
            Self::One(_) | Self::Wrong => Command::Help,
        }
    }
}

/// A flag is no name: no command takes any.
fn is_name(word: &str) -> bool {
    !word.starts_with(['-', '\u{2013}', '\u{2014}'])
        && !word.contains(char::is_control)
        && word.chars().nth(LONGEST_NAME).is_none()
}

fn is_account(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn provider(name: &str) -> Option<Command> {
        Some(Command::UseProvider(name.to_owned()))
    }

    fn model(name: &str) -> Option<Command> {
        Some(Command::UseModel(name.to_owned()))
    }

    #[rstest]
    #[case("/models openrouter", provider("openrouter"))]
    #[case("/models", Some(Command::Providers))]
    #[case("/model anthropic/claude-sonnet-4-5", model("anthropic/claude-sonnet-4-5"))]
    #[case("/model llama3.2:8b", model("llama3.2:8b"))]
    #[case("/model", Some(Command::Model))]
    #[case("/new", Some(Command::New))]
    #[case("  /new \n", Some(Command::New))]
    #[case("/stop", Some(Command::Stop(StopReach::Own)))]
    #[case("/stop all", Some(Command::Stop(StopReach::All)))]
    #[case("/STOP  All", Some(Command::Stop(StopReach::All)))]
    #[case("/status", Some(Command::Status))]
    #[case("/help", Some(Command::Help))]
    #[case("/help me", Some(Command::Help))]
    #[case::as_telephones_write_it("/Status", Some(Command::Status))]
    #[case::in_a_group("/status@quell_bot", Some(Command::Status))]
    #[case::in_a_group_with_a_name("/model@quell_bot gpt-5", model("gpt-5"))]
    #[case::in_a_matrix_room("/stop@quell:example.org", Some(Command::Stop(StopReach::Own)))]
    fn commands_are_known(#[case] text: &str, #[case] command: Option<Command>) {
        assert_eq!(Command::of(text), command);
    }

    #[rstest]
    #[case::unknown_flag("/model --user gpt-5")]
    #[case::unknown_flag_alone("/model --list")]
    #[case::short_flag("/models -a")]
    #[case::flag_as_telephones_write_it("/model \u{2014}list")]
    #[case::two_names("/model gpt 5")]
    #[case::words_behind("/new plan for tomorrow")]
    #[case::next_line("/new\nwhat is the weather?")]
    #[case::not_all("/stop everything")]
    #[case::status("/status of run 7")]
    #[case::control_character("/model a\u{7}b")]
    fn a_command_that_is_written_wrong_shows_help_and_does_nothing(#[case] text: &str) {
        assert_eq!(Command::of(text), Some(Command::Help));
    }

    #[test]
    fn a_text_that_is_no_name_is_not_taken_for_one() {
        assert_eq!(Command::of(&format!("/model {}", "x".repeat(LONGEST_NAME))), model(&"x".repeat(LONGEST_NAME)));
        assert_eq!(Command::of(&format!("/model {}", "x".repeat(LONGEST_NAME + 1))), Some(Command::Help));
    }

    #[rstest]
    #[case("/home/x is full")]
    #[case("/")]
    #[case("/ new")]
    #[case("//new")]
    #[case("/newer")]
    #[case("/new/plan")]
    #[case("/stop@")]
    #[case("/stop@a/b")]
    #[case("/@bot")]
    #[case("new")]
    #[case("what does /new do?")]
    #[case("")]
    fn what_only_begins_with_a_slash_is_no_command(#[case] text: &str) {
        assert_eq!(Command::of(text), None);
    }

    #[test]
    fn help_names_every_command() {
        for command in ["/models PROVIDER", "/model NAME", "/new", "/stop all", "/status", "/help"] {
            assert!(HELP.contains(command), "{command}");
        }
    }

    proptest! {
        #[test]
        fn a_text_without_a_slash_at_its_beginning_is_no_command(text in any::<String>()) {
            prop_assume!(!text.trim_start().starts_with('/'));
            prop_assert_eq!(Command::of(&text), None);
        }
    }
}
