//! Commands of a conversation that no model is called for (row D5).

use std::time::Duration;

use quell_engine::dispatch::{NotMade, SessionError};
use quell_engine::scope::Cancelled;
use quell_kernel::Push;
use quell_kernel::channel::commands::{self, Command, HELP};
use quell_kernel::channel::inbox::Letter;
use quell_kernel::registry::StopAsk;
use quell_protocol::api::{AgentRow, Scope as Rights};
use quell_protocol::page::SessionPatch;
use quell_protocol::{ErrorCode, SessionKey, StopReason, Surface};
use tokio::time::sleep;

use super::send::{Patience, send};
use super::{Channels, Extra, caller, words};
use crate::channels::format::pieces;

/// How long a command that was stopped is waited for: the engine takes back what it had begun, and a hook may need killing.
const TAKEN_BACK: Duration = Duration::from_secs(5);

/// The same at a shutdown, which has not so long.
const AT_THE_END: Duration = Duration::from_millis(500);

/// A command was stopped, and has nothing else to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// It has changed nothing.
    Unchanged,
    /// Nobody knows yet: the engine is still at it.
    Unknown,
}

/// Does what is asked, and says what came of it. What changes the conversation is done once, although a network may tell it again
/// after a restart; one that was stopped is done with, too.
pub(super) async fn obey(channels: &Channels, letter: &Letter<Extra>, command: Command) {
    let changes = matches!(command, Command::New | Command::UseModel(_) | Command::UseProvider(_));
    // The database stays open for a moment, so that what was done is not done again by the next daemon.
    let telling = changes.then(|| channels.engine().telling());
    if changes && looked(letter, was_obeyed(channels, letter)).await == Ok(true) {
        return;
    }
    let came_of_it = act(channels, letter, command.clone()).await;
    if changes {
        keep_obeyed(channels, letter).await;
    }
    let is_stopped = letter.extra.stopped.is_cancelled();
    let said = match came_of_it {
        // At a shutdown that is no news.
        Ok(said) if changes && is_stopped && !channels.scope().is_cancelled() => words::over_before_stop(&said),
        Ok(said) => said,
        Err(Cut::Unchanged) if channels.scope().is_cancelled() => words::not_taken(ErrorCode::ShuttingDown).to_owned(),
        Err(Cut::Unchanged) if command == Command::New => words::NEW_STOPPED.to_owned(),
        Err(Cut::Unchanged) => words::COMMAND_STOPPED.to_owned(),
        Err(Cut::Unknown) => words::COMMAND_LEFT.to_owned(),
    };
    if is_stopped {
        tracing::info!(command = %letter.run, "a command was stopped");
    }
    drop(telling);
    say(channels, letter, said).await;
}

async fn act(channels: &Channels, letter: &Letter<Extra>, command: Command) -> Result<String, Cut> {
    match command {
        Command::Help | Command::Stop(_) => Ok(HELP.to_owned()),
        Command::Providers => Ok(providers(channels)),
        Command::UseProvider(provider) => use_provider(channels, letter, &provider).await,
        Command::Model => Ok(match looked(letter, model_of(channels, letter)).await? {
            Some(model) => format!("This conversation is for {model}. /model NAME chooses another one."),
            None => "It is not known which model this conversation is for.".to_owned(),
        }),
        Command::UseModel(name) => use_model(channels, letter, &name).await,
        Command::New => begin_anew(channels, letter).await,
        Command::Status => status(channels, letter).await,
    }
}

/// Waits for what only looks, until the command is stopped.
async fn looked<T>(letter: &Letter<Extra>, looking: impl Future<Output = T>) -> Result<T, Cut> {
    tokio::select! {
        biased;
        () = letter.extra.stopped.cancelled() => Err(Cut::Unchanged),
        found = looking => Ok(found),
    }
}

/// Waits for what the engine ends by itself when the command is stopped, but not for ever then.
async fn ended<T>(
    channels: &Channels,
    letter: &Letter<Extra>,
    work: impl Future<Output = Result<T, Cancelled>>,
) -> Result<T, Cut> {
    let overdue = async {
        letter.extra.stopped.cancelled().await;
        let closing = async {
            channels.scope().cancelled().await;
            sleep(AT_THE_END).await;
        };
        tokio::select! {
            () = sleep(TAKEN_BACK) => {}
            () = closing => {}
        }
    };
    tokio::select! {
        biased;
        // Left behind, it goes on in a task of the engine.
        ended = work => ended.map_err(|Cancelled| Cut::Unchanged),
        () = overdue => Err(Cut::Unknown),
    }
}

async fn was_obeyed(channels: &Channels, letter: &Letter<Extra>) -> bool {
    let known = channels.engine().is_obeyed(&letter.run).await;
    known.unwrap_or_else(|error| {
        tracing::warn!(command = %letter.run, %error, "it is not known whether a command has acted before");
        false
    })
}

async fn keep_obeyed(channels: &Channels, letter: &Letter<Extra>) {
    let kept = tokio::select! {
        biased;
        kept = channels.engine().keep_obeyed(&letter.run) => kept,
        // Handed over when it was looked at first, it is written whether or not anybody waits.
        () = letter.extra.stopped.cancelled() => return,
    };
    if let Err(error) = kept {
        tracing::warn!(command = %letter.run, %error, "a command may act again after a restart");
    }
}

async fn say(channels: &Channels, letter: &Letter<Extra>, said: String) {
    let Extra { channel, place, .. } = &letter.extra;
    if !channels.scope().is_cancelled() {
        return channel.outlet.say(place, said);
    }
    // The channel has gone, and with it whoever sends what waits to be said.
    for (number, piece) in pieces(&said, &channel.manners.form).iter().enumerate() {
        let key = format!("{}-end-{number}", letter.run);
        if let Err(error) = send(channel, place, (piece, &key), Patience::Short).await {
            channel.count_undelivered();
            return tracing::warn!(command = %letter.run, %error, "what came of a command was not told in its chat");
        }
    }
}

fn providers(channels: &Channels) -> String {
    let names = channels.engine().provider_names();
    format!("Providers: {}. /models NAME chooses one for this conversation.", names.join(", "))
}

async fn use_provider(channels: &Channels, letter: &Letter<Extra>, provider: &str) -> Result<String, Cut> {
    let names = channels.engine().provider_names();
    if !names.iter().any(|name| name == provider) {
        return Ok(format!("There is no provider {provider:?}; there are {}.", names.join(", ")));
    }
    let current = looked(letter, model_of(channels, letter)).await?;
    let name = current.as_deref().and_then(|model| model.split_once('/')).map(|(_, name)| name.to_owned());
    // The models that are known of a provider are those that agents name.
    let known =
        known_models(channels).into_iter().find(|model| model.split_once('/').is_some_and(|(of, _)| of == provider));
    match known.or(name.map(|name| format!("{provider}/{name}"))) {
        Some(model) => choose(channels, letter, model).await,
        None => Ok(format!("No model of {provider} is known; /model {provider}/NAME chooses one.")),
    }
}

async fn use_model(channels: &Channels, letter: &Letter<Extra>, name: &str) -> Result<String, Cut> {
    let names = channels.engine().provider_names();
    let full = name.split_once('/').is_some_and(|(provider, _)| names.iter().any(|known| known == provider));
    if full {
        return choose(channels, letter, name.to_owned()).await;
    }
    let current = looked(letter, model_of(channels, letter)).await?;
    match current.as_deref().and_then(|model| model.split_once('/')) {
        Some((provider, _)) => choose(channels, letter, format!("{provider}/{name}")).await,
        None => Ok(format!("Name the provider too, as in /model PROVIDER/{name}; there are {}.", names.join(", "))),
    }
}

async fn choose(channels: &Channels, letter: &Letter<Extra>, model: String) -> Result<String, Cut> {
    let patch = SessionPatch { model: Some(model.clone()), agent: None };
    let (who, stopped) = (who(letter), &letter.extra.stopped);
    let patched = channels.engine().patch_session_unless(&who, &letter.conversation, patch, stopped);
    Ok(match ended(channels, letter, patched).await? {
        Ok(_) => format!("This conversation is for {model} from now on."),
        Err(NotMade::Configuration(problem)) => format!("{model} cannot be used: {problem}"),
        Err(error) => {
            tracing::warn!(session = %letter.conversation, %error, "a model was not chosen");
            words::not_taken(error.code()).to_owned()
        }
    })
}

async fn begin_anew(channels: &Channels, letter: &Letter<Extra>) -> Result<String, Cut> {
    let ask = StopAsk { push: Push::Gentle, reason: StopReason::Command, surface: Surface::Channel };
    let (who, stopped) = (who(letter), &letter.extra.stopped);
    let reset = channels.engine().reset_session_unless(&who, &letter.conversation, &ask, stopped);
    Ok(match ended(channels, letter, reset).await? {
        Ok(_) => "A new conversation begins.".to_owned(),
        Err(SessionError::SomebodyElses(_)) => {
            "What somebody else asked for is at work in this conversation. Wait for it, or ask an operator.".to_owned()
        }
        // A conversation is its people's, whoever began it.
        Err(SessionError::NotYours(_)) => "This could not be done. Ask an operator.".to_owned(),
        Err(error @ SessionError::Store(_)) => {
            tracing::error!(session = %letter.conversation, %error, "a conversation was not begun anew");
            words::not_taken(ErrorCode::StoreUnavailable).to_owned()
        }
    })
}

async fn status(channels: &Channels, letter: &Letter<Extra>) -> Result<String, Cut> {
    let runs = channels.engine().active_runs_of(&letter.conversation);
    let model = looked(letter, model_of(channels, letter)).await?.unwrap_or_else(|| "unknown".to_owned());
    Ok(commands::status(&runs, &model))
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
