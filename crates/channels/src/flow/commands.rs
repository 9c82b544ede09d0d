//! Execute chat commands that need no model (`/new`, `/model`, `/models`, `/status`, `/help`).

use std::time::Duration;

use quell_engine::engine::{OpenSessionError, SessionError};
use quell_kernel::StopLevel;
use quell_kernel::channel::commands::{self, ChannelCommand, HELP_TEXT};
use quell_kernel::channel::inbox::InboxMessage;
use quell_kernel::registry::StopRequest;
use quell_protocol::api::{AccessLevel, AgentRow};
use quell_protocol::web_ui::SessionPatch;
use quell_protocol::{ErrorCode, SessionKey, StopReason, Surface};
use quell_scope::Interrupted;
use tokio::time::sleep;

use super::send_retry::{SendPersistence, send_piece};
use super::{Channels, ChatOrigin, channel_caller, texts};
use crate::format::split_message;

/// How long to wait for a stopped command: the engine rolls back what it had begun, and a hook process may have to be
/// killed.
pub(super) const STOPPED_COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// Same as [`STOPPED_COMMAND_TIMEOUT`], during a shutdown.
const SHUTDOWN_COMMAND_TIMEOUT: Duration = Duration::from_millis(500);

/// A command was stopped before it had a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandStopped {
    /// The command has changed nothing.
    NoEffect,
    /// The engine has not finished rolling back; the command may still take effect.
    StillRunning,
}

/// Executes a command and sends its result to the chat. A command that changes the conversation is executed once,
/// although a network may deliver it again after a restart. A stopped command counts as executed.
pub(super) async fn execute_command(channels: &Channels, queued: &InboxMessage<ChatOrigin>, command: ChannelCommand) {
    let is_change =
        matches!(command, ChannelCommand::New | ChannelCommand::UseModel(_) | ChannelCommand::UseProvider(_));
    // Keeps the database open until the command is marked as executed, so that the next daemon does not repeat it.
    let shutdown_guard = is_change.then(|| channels.engine().delay_shutdown());
    if is_change && read_until_stopped(queued, was_executed(channels, queued)).await == Ok(true) {
        return;
    }
    let outcome = run_command(channels, queued, command.clone()).await;
    if is_change {
        mark_executed(channels, queued).await;
    }
    let is_stopped = queued.extra.stop_token.is_cancelled();
    let text = match outcome {
        // During a shutdown this note would say nothing new.
        Ok(said) if is_change && is_stopped && !channels.scope().is_cancelled() => {
            texts::finished_before_stop_text(&said)
        }
        Ok(said) => said,
        Err(CommandStopped::NoEffect) if channels.scope().is_cancelled() => {
            texts::rejection_text(ErrorCode::ShuttingDown).to_owned()
        }
        Err(CommandStopped::NoEffect) if command == ChannelCommand::New => texts::NEW_CONVERSATION_STOPPED.to_owned(),
        Err(CommandStopped::NoEffect) => texts::COMMAND_STOPPED.to_owned(),
        Err(CommandStopped::StillRunning) => texts::COMMAND_STILL_RUNNING.to_owned(),
    };
    if is_stopped {
        tracing::info!(command = %queued.run_id, "a command was stopped");
    }
    drop(shutdown_guard);
    send_outcome(channels, queued, text).await;
}

async fn run_command(
    channels: &Channels,
    queued: &InboxMessage<ChatOrigin>,
    command: ChannelCommand,
) -> Result<String, CommandStopped> {
    match command {
        ChannelCommand::Help | ChannelCommand::Stop(_) => Ok(HELP_TEXT.to_owned()),
        ChannelCommand::Providers => Ok(providers_text(channels)),
        ChannelCommand::UseProvider(provider) => use_provider(channels, queued, &provider).await,
        ChannelCommand::Model => Ok(match read_until_stopped(queued, current_model(channels, queued)).await? {
            Some(model) => format!("This conversation is for {model}. /model NAME chooses another one."),
            None => "It is not known which model this conversation is for.".to_owned(),
        }),
        ChannelCommand::UseModel(name) => use_model(channels, queued, &name).await,
        ChannelCommand::New => start_new_conversation(channels, queued).await,
        ChannelCommand::Status => status_text(channels, queued).await,
    }
}

/// Waits for a read-only operation, until the command is stopped.
async fn read_until_stopped<T>(
    queued: &InboxMessage<ChatOrigin>,
    reading: impl Future<Output = T>,
) -> Result<T, CommandStopped> {
    tokio::select! {
        biased;
        () = queued.extra.stop_token.cancelled() => Err(CommandStopped::NoEffect),
        value = reading => Ok(value),
    }
}

/// Waits for a change. A stop makes the engine end it; after the stop this waits for a limited time only.
async fn change_until_stopped<T, E>(
    channels: &Channels,
    queued: &InboxMessage<ChatOrigin>,
    change: impl Future<Output = Result<T, Interrupted<E>>>,
) -> Result<Result<T, E>, CommandStopped> {
    let stop_timeout = async {
        queued.extra.stop_token.cancelled().await;
        let closing = async {
            channels.scope().cancelled().await;
            sleep(SHUTDOWN_COMMAND_TIMEOUT).await;
        };
        tokio::select! {
            () = sleep(channels.0.stopped_command_timeout) => {}
            () = closing => {}
        }
    };
    tokio::select! {
        biased;
        // If the timeout wins, the change continues in a task of the engine.
        ended = change => match ended {
            Ok(done) => Ok(Ok(done)),
            Err(Interrupted::Failed(error)) => Ok(Err(error)),
            Err(Interrupted::Cancelled) => Err(CommandStopped::NoEffect),
        },
        () = stop_timeout => Err(CommandStopped::StillRunning),
    }
}

async fn was_executed(channels: &Channels, queued: &InboxMessage<ChatOrigin>) -> bool {
    let known = channels.engine().is_command_executed(&queued.run_id).await;
    known.unwrap_or_else(|error| {
        tracing::warn!(command = %queued.run_id, %error, "cannot tell whether a command was executed before");
        false
    })
}

async fn mark_executed(channels: &Channels, queued: &InboxMessage<ChatOrigin>) {
    let kept = tokio::select! {
        biased;
        kept = channels.engine().mark_command_executed(&queued.run_id) => kept,
        // The write was handed to the store when it was first polled, so it completes even if nothing waits for it.
        () = queued.extra.stop_token.cancelled() => return,
    };
    if let Err(error) = kept {
        tracing::warn!(command = %queued.run_id, %error, "a command may be executed again after a restart");
    }
}

async fn send_outcome(channels: &Channels, queued: &InboxMessage<ChatOrigin>, text: String) {
    let ChatOrigin { channel, address, .. } = &queued.extra;
    if !channels.scope().is_cancelled() {
        return channel.notices.push(address, text);
    }
    // The channel is shut down and its notice queue has ended: send directly.
    for (number, piece) in split_message(&text, &channel.limits.message_format).iter().enumerate() {
        let key = format!("{}-end-{number}", queued.run_id);
        if let Err(error) = send_piece(&*channel.network, address, piece, &key, SendPersistence::FewTries).await {
            channel.count_undelivered();
            return tracing::warn!(command = %queued.run_id, %error, "the result of a command was not delivered");
        }
    }
}

fn providers_text(channels: &Channels) -> String {
    let names = channels.engine().provider_names();
    format!("Providers: {}. /models NAME chooses one for this conversation.", names.join(", "))
}

async fn use_provider(
    channels: &Channels,
    queued: &InboxMessage<ChatOrigin>,
    provider: &str,
) -> Result<String, CommandStopped> {
    let names = channels.engine().provider_names();
    if !names.iter().any(|name| name == provider) {
        return Ok(format!("There is no provider {provider:?}; there are {}.", names.join(", ")));
    }
    let current = read_until_stopped(queued, current_model(channels, queued)).await?;
    let name = current.as_deref().and_then(|model| model.split_once('/')).map(|(_, name)| name.to_owned());
    // Only the models that agents name are known.
    let known =
        agent_models(channels).into_iter().find(|model| model.split_once('/').is_some_and(|(of, _)| of == provider));
    match known.or(name.map(|name| format!("{provider}/{name}"))) {
        Some(model) => set_session_model(channels, queued, model).await,
        None => Ok(format!("No model of {provider} is known; /model {provider}/NAME chooses one.")),
    }
}

async fn use_model(
    channels: &Channels,
    queued: &InboxMessage<ChatOrigin>,
    name: &str,
) -> Result<String, CommandStopped> {
    let names = channels.engine().provider_names();
    let has_provider = name.split_once('/').is_some_and(|(provider, _)| names.iter().any(|known| known == provider));
    if has_provider {
        return set_session_model(channels, queued, name.to_owned()).await;
    }
    let current = read_until_stopped(queued, current_model(channels, queued)).await?;
    match current.as_deref().and_then(|model| model.split_once('/')) {
        Some((provider, _)) => set_session_model(channels, queued, format!("{provider}/{name}")).await,
        None => Ok(format!("Name the provider too, as in /model PROVIDER/{name}; there are {}.", names.join(", "))),
    }
}

async fn set_session_model(
    channels: &Channels,
    queued: &InboxMessage<ChatOrigin>,
    model: String,
) -> Result<String, CommandStopped> {
    let patch = SessionPatch { model: Some(model.clone()), agent: None };
    let (caller, stopped) = (message_caller(queued), &queued.extra.stop_token);
    let patched = channels.engine().patch_session_until_cancelled(&caller, &queued.conversation, patch, stopped);
    Ok(match change_until_stopped(channels, queued, patched).await? {
        Ok(_) => format!("This conversation is for {model} from now on."),
        Err(OpenSessionError::Configuration(problem)) => format!("{model} cannot be used: {problem}"),
        Err(error) => {
            tracing::warn!(session = %queued.conversation, %error, "the model of a session was not changed");
            texts::rejection_text(error.code()).to_owned()
        }
    })
}

async fn start_new_conversation(
    channels: &Channels,
    queued: &InboxMessage<ChatOrigin>,
) -> Result<String, CommandStopped> {
    let request = StopRequest { level: StopLevel::Gentle, reason: StopReason::Command, surface: Surface::Channel };
    let (caller, stopped) = (message_caller(queued), &queued.extra.stop_token);
    let reset = channels.engine().reset_session_until_cancelled(&caller, &queued.conversation, &request, stopped);
    Ok(match change_until_stopped(channels, queued, reset).await? {
        Ok(_) => "A new conversation begins.".to_owned(),
        Err(SessionError::ForeignRunActive(_)) => {
            "What somebody else asked for is at work in this conversation. Wait for it, or ask an operator.".to_owned()
        }
        // A conversation belongs to everyone in it, so the text does not speak of an owner.
        Err(SessionError::NotOwner(_)) => "This could not be done. Ask an operator.".to_owned(),
        Err(error @ SessionError::Store(_)) => {
            tracing::error!(session = %queued.conversation, %error, "a conversation was not reset");
            texts::rejection_text(ErrorCode::StoreUnavailable).to_owned()
        }
    })
}

async fn status_text(channels: &Channels, queued: &InboxMessage<ChatOrigin>) -> Result<String, CommandStopped> {
    let runs = channels.engine().active_runs_of_session(&queued.conversation);
    let model =
        read_until_stopped(queued, current_model(channels, queued)).await?.unwrap_or_else(|| "unknown".to_owned());
    Ok(commands::status_text(&runs, &model))
}

/// The model of the next message, without keyword routing.
async fn current_model(channels: &Channels, queued: &InboxMessage<ChatOrigin>) -> Option<String> {
    let engine = channels.engine();
    let key: &SessionKey = &queued.conversation;
    let view = engine.session_view(key).await.ok().flatten();
    if let Some(config) = view.and_then(|view| view.config) {
        return Some(config.model.value);
    }
    let configured_agent = queued.extra.channel.config.agent.clone();
    let is_wanted = |row: &AgentRow| configured_agent.as_ref().map_or(row.default, |id| *id == row.id);
    engine.list_agents().into_iter().find(is_wanted).map(|row| row.model)
}

fn agent_models(channels: &Channels) -> Vec<String> {
    channels.engine().list_agents().into_iter().map(|row| row.model).collect()
}

fn message_caller(queued: &InboxMessage<ChatOrigin>) -> quell_engine::engine::Caller {
    let sender = &queued.message.sender;
    channel_caller(
        &queued.message.channel,
        sender,
        queued.extra.channel.access_level(sender).unwrap_or(AccessLevel::Read),
    )
}
