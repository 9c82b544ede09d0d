//! Commands of a conversation that no model is called for (row D5).

use quell_engine::dispatch::{NotMade, SessionError};
use quell_kernel::Push;
use quell_kernel::channel::commands::{Command, HELP};
use quell_kernel::channel::inbox::Letter;
use quell_kernel::registry::StopAsk;
use quell_protocol::api::{AgentRow, Scope as Rights};
use quell_protocol::page::SessionPatch;
use quell_protocol::{ErrorCode, SessionKey, StopReason, Surface};

use super::{Channels, Extra, caller, words};

/// Does what is asked, and says what came of it. What changes the conversation is done once, although a network may tell it again
/// after a restart.
pub(super) async fn obey(channels: &Channels, letter: &Letter<Extra>, command: Command) {
    let changes = matches!(command, Command::New | Command::UseModel(_) | Command::UseProvider(_));
    if changes && was_obeyed(channels, letter).await {
        return;
    }
    let said = match command {
        Command::Help | Command::Stop(_) => HELP.to_owned(),
        Command::Providers => providers(channels),
        Command::UseProvider(provider) => use_provider(channels, letter, &provider).await,
        Command::Model => match model_of(channels, letter).await {
            Some(model) => format!("This conversation is for {model}. /model NAME chooses another one."),
            None => "It is not known which model this conversation is for.".to_owned(),
        },
        Command::UseModel(name) => use_model(channels, letter, &name).await,
        Command::New => begin_anew(channels, letter).await,
        Command::Status => status(channels, letter).await,
    };
    if changes && let Err(error) = channels.engine().keep_obeyed(&letter.run).await {
        tracing::warn!(command = %letter.run, %error, "a command may act again after a restart");
    }
    letter.extra.channel.outlet.say(&letter.extra.place, said);
}

async fn was_obeyed(channels: &Channels, letter: &Letter<Extra>) -> bool {
    let known = channels.engine().is_obeyed(&letter.run).await;
    known.unwrap_or_else(|error| {
        tracing::warn!(command = %letter.run, %error, "it is not known whether a command has acted before");
        false
    })
}

fn providers(channels: &Channels) -> String {
    let names = channels.engine().provider_names();
    format!("Providers: {}. /models NAME chooses one for this conversation.", names.join(", "))
}

async fn use_provider(channels: &Channels, letter: &Letter<Extra>, provider: &str) -> String {
    let names = channels.engine().provider_names();
    if !names.iter().any(|name| name == provider) {
        return format!("There is no provider {provider:?}; there are {}.", names.join(", "));
    }
    let current = model_of(channels, letter).await;
    let name = current.as_deref().and_then(|model| model.split_once('/')).map(|(_, name)| name.to_owned());
    // The models that are known of a provider are those that agents name.
    let known =
        known_models(channels).into_iter().find(|model| model.split_once('/').is_some_and(|(of, _)| of == provider));
    match known.or(name.map(|name| format!("{provider}/{name}"))) {
        Some(model) => choose(channels, letter, model).await,
        None => format!("No model of {provider} is known; /model {provider}/NAME chooses one."),
    }
}

async fn use_model(channels: &Channels, letter: &Letter<Extra>, name: &str) -> String {
    let names = channels.engine().provider_names();
    let full = name.split_once('/').is_some_and(|(provider, _)| names.iter().any(|known| known == provider));
    if full {
        return choose(channels, letter, name.to_owned()).await;
    }
    let current = model_of(channels, letter).await;
    match current.as_deref().and_then(|model| model.split_once('/')) {
        Some((provider, _)) => choose(channels, letter, format!("{provider}/{name}")).await,
        None => format!("Name the provider too, as in /model PROVIDER/{name}; there are {}.", names.join(", ")),
    }
}

async fn choose(channels: &Channels, letter: &Letter<Extra>, model: String) -> String {
    let patch = SessionPatch { model: Some(model.clone()), agent: None };
    match channels.engine().patch_session(&who(letter), &letter.conversation, patch).await {
        Ok(_) => format!("This conversation is for {model} from now on."),
        Err(NotMade::Configuration(problem)) => format!("{model} cannot be used: {problem}"),
        Err(error) => {
            tracing::warn!(session = %letter.conversation, %error, "a model was not chosen");
            words::not_taken(error.code()).to_owned()
        }
    }
}

async fn begin_anew(channels: &Channels, letter: &Letter<Extra>) -> String {
    let ask = StopAsk { push: Push::Gentle, reason: StopReason::Command, surface: Surface::Channel };
    match channels.engine().reset_session(&who(letter), &letter.conversation, &ask).await {
        Ok(_) => "A new conversation begins.".to_owned(),
        Err(SessionError::SomebodyElses(_)) => {
            "What somebody else asked for is at work in this conversation. Wait for it, or ask an operator.".to_owned()
        }
        Err(error @ SessionError::Store(_)) => {
            tracing::error!(session = %letter.conversation, %error, "a conversation was not begun anew");
            words::not_taken(ErrorCode::StoreUnavailable).to_owned()
        }
    }
}

async fn status(channels: &Channels, letter: &Letter<Extra>) -> String {
    let runs = channels.engine().active_runs_of(&letter.conversation);
    let model = model_of(channels, letter).await.unwrap_or_else(|| "unknown".to_owned());
    let (working, waiting): (Vec<_>, Vec<_>) = runs.iter().partition(|run| run.state != "queued");
    let work = match working.first() {
        None => "Nothing is running here".to_owned(),
        Some(run) => format!("Working since {} (step {}, {} processes)", run.accepted_at, run.steps, run.processes),
    };
    let queue = if waiting.is_empty() { String::new() } else { format!(", {} waiting", waiting.len()) };
    format!("{work}{queue}. Model: {model}. /stop ends it.")
}

/// The model that the next message is for, without what its words may choose.
async fn model_of(channels: &Channels, letter: &Letter<Extra>) -> Option<String> {
    let engine = channels.engine();
    let key: &SessionKey = &letter.conversation;
    let view = engine.session_view(key).await.ok().flatten();
    if let Some(config) = view.and_then(|view| view.config) {
        return Some(config.model.value);
    }
    let wanted = letter.extra.channel.config.agent.clone();
    let is_wanted = |row: &AgentRow| wanted.as_ref().map_or(row.default, |id| *id == row.id);
    engine.agents().into_iter().find(is_wanted).map(|row| row.model)
}

fn known_models(channels: &Channels) -> Vec<String> {
    channels.engine().agents().into_iter().map(|row| row.model).collect()
}

fn who(letter: &Letter<Extra>) -> quell_engine::dispatch::Caller {
    let sender = &letter.message.sender;
    caller(&letter.message.channel, sender, letter.extra.channel.rights(sender).unwrap_or(Rights::Read))
}
