//! Execute chat commands that need no model (`/new`, `/model`, `/models`, `/status`, `/approve`, `/deny`, `/schedules`,
//! `/prompts`, `/resources`, `/help`).

use std::convert::Infallible;
use std::fmt::Display;
use std::time::Duration;

use quell_engine::engine::{Caller, OpenSessionError, SessionError, SessionTransferError};
use quell_kernel::StopLevel;
use quell_kernel::channel::chat_language::ChatLanguage;
use quell_kernel::channel::chat_text::ChatText;
use quell_kernel::channel::commands::{self, ChannelCommand, HELP_TEXT, ScheduleEdit};
use quell_kernel::channel::inbox::InboxMessage;
use quell_kernel::registry::StopRequest;
use quell_protocol::api::{AccessLevel, AgentRow};
use quell_protocol::approval::ApprovalAnswer;
use quell_protocol::web_ui::SessionPatch;
use quell_protocol::{ErrorCode, SessionKey, StopReason, Surface};
use quell_scope::Interrupted;
use tokio::time::sleep;

use super::notices::NoticePriority;
use super::schedule_commands::SenderSchedules;
use super::send_retry::{SendPersistence, send_text};
use super::{Channels, ChatOrigin, approval_messages, channel_caller, command_texts, mcp_commands, texts};

/// How long to wait for a stopped command: the engine rolls back what it had begun, and a hook process may have to be
/// killed.
const STOPPED_COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

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
    CommandRun { channels, queued }.execute(command).await;
}

/// A command and the channels in which it is executed.
#[derive(Clone, Copy)]
struct CommandRun<'a> {
    channels: &'a Channels,
    queued: &'a InboxMessage<ChatOrigin>,
}

impl CommandRun<'_> {
    fn language(self) -> ChatLanguage {
        self.queued.extra.language(self.channels)
    }

    /// The text in the language of the conversation.
    fn text(self, text: ChatText) -> String {
        text.text(self.language()).to_owned()
    }

    /// The text with its values, in the language of the conversation.
    fn format(self, text: ChatText, values: &[(&str, &dyn Display)]) -> String {
        text.format(self.language(), values)
    }

    async fn execute(self, command: ChannelCommand) {
        let is_change =
            matches!(command, ChannelCommand::New | ChannelCommand::UseModel(_) | ChannelCommand::UseProvider(_));
        // Keeps the database open until the command is marked as executed, so that the next daemon does not repeat it.
        let shutdown_guard = is_change.then(|| self.channels.engine().delay_shutdown());
        if is_change && self.read_until_stopped(self.was_executed()).await == Ok(true) {
            return;
        }
        let outcome = match self.acquire_session(is_change).await {
            Ok(None) => self.run_command(command.clone()).await,
            Ok(Some(refusal)) => Ok(refusal),
            Err(stopped) => Err(stopped),
        };
        if is_change {
            self.mark_executed().await;
        }
        let is_stopped = self.queued.extra.stop_token.is_cancelled();
        let text = match outcome {
            // During a shutdown this note would say nothing new.
            Ok(said) if is_change && is_stopped && !self.channels.scope().is_cancelled() => {
                self.format(command_texts::FINISHED_BEFORE_STOP, &[("outcome", &said)])
            }
            Ok(said) => said,
            Err(CommandStopped::NoEffect) if self.channels.scope().is_cancelled() => {
                self.text(texts::rejection_text(ErrorCode::ShuttingDown))
            }
            Err(CommandStopped::NoEffect) if command == ChannelCommand::New => {
                self.text(command_texts::NEW_CONVERSATION_STOPPED)
            }
            Err(CommandStopped::NoEffect) => self.text(command_texts::COMMAND_STOPPED),
            Err(CommandStopped::StillRunning) => self.text(command_texts::COMMAND_STILL_RUNNING),
        };
        if is_stopped {
            tracing::info!(command = %self.queued.run_id, "a command was stopped");
        }
        drop(shutdown_guard);
        send_outcome(self.channels, self.queued, text).await;
    }

    async fn run_command(self, command: ChannelCommand) -> Result<String, CommandStopped> {
        match command {
            // Those that become messages are sent as such.
            ChannelCommand::Help | ChannelCommand::Stop(_) | ChannelCommand::McpMessage(_) => Ok(self.text(HELP_TEXT)),
            ChannelCommand::Providers => Ok(self.providers_text()),
            ChannelCommand::UseProvider(provider) => self.use_provider(&provider).await,
            ChannelCommand::Model => Ok(match self.read_until_stopped(self.current_model()).await? {
                Some(model) => self.format(command_texts::CURRENT_MODEL, &[("model", &model)]),
                None => self.text(command_texts::MODEL_UNKNOWN),
            }),
            ChannelCommand::UseModel(name) => self.use_model(&name).await,
            ChannelCommand::New => self.start_new_conversation().await,
            ChannelCommand::Status => self.status_text().await,
            ChannelCommand::McpList(list) => {
                let listing = mcp_commands::list_text(self.channels, self.queued, list, self.language());
                self.read_until_stopped(listing).await
            }
            ChannelCommand::Schedules => self.read_until_stopped(self.schedules().list()).await,
            ChannelCommand::EditSchedule { edit, id } => self.edit_schedule(edit, &id).await,
            ChannelCommand::AnswerApproval { id, answer } => Ok(self.answer_approval(&id, answer)),
        }
    }

    /// Waits for a read-only operation, until the command is stopped.
    async fn read_until_stopped<T>(self, reading: impl Future<Output = T>) -> Result<T, CommandStopped> {
        tokio::select! {
            biased;
            () = self.queued.extra.stop_token.cancelled() => Err(CommandStopped::NoEffect),
            value = reading => Ok(value),
        }
    }

    /// Waits for a change. A stop makes the engine end it; after the stop this waits for a limited time only.
    async fn change_until_stopped<T, E>(
        self,
        change: impl Future<Output = Result<T, Interrupted<E>>>,
    ) -> Result<Result<T, E>, CommandStopped> {
        let stop_timeout = async {
            self.queued.extra.stop_token.cancelled().await;
            let closing = async {
                self.channels.scope().cancelled().await;
                sleep(SHUTDOWN_COMMAND_TIMEOUT).await;
            };
            tokio::select! {
                () = sleep(STOPPED_COMMAND_TIMEOUT) => {}
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

    /// Makes the conversation one of this node before it is changed. Returns the text of a refusal.
    async fn acquire_session(self, is_change: bool) -> Result<Option<String>, CommandStopped> {
        if !is_change {
            return Ok(None);
        }
        let key = &self.queued.conversation;
        let acquired = tokio::select! {
            acquired = self.channels.engine().acquire_session(key) => acquired,
            () = self.queued.extra.stop_token.cancelled() => return Err(CommandStopped::NoEffect),
        };
        if matches!(acquired, Err(SessionTransferError::Stopped)) {
            return Err(CommandStopped::NoEffect);
        }
        Ok(acquired.err().map(|error| {
            tracing::warn!(session = %key, %error, "a command was refused");
            self.text(texts::rejection_text(ErrorCode::Busy))
        }))
    }

    async fn was_executed(self) -> bool {
        let known = self.channels.engine().channel_store().is_command_executed(self.queued.run_id.to_string()).await;
        known.unwrap_or_else(|error| {
            tracing::warn!(command = %self.queued.run_id, %error, "cannot tell whether a command was executed before");
            false
        })
    }

    async fn mark_executed(self) {
        let kept = tokio::select! {
            biased;
            kept = self.channels.engine().channel_store().mark_command_executed(self.queued.run_id.to_string()) => kept,
            // The write was handed to the store when it was first polled, so it completes even if nothing waits for it.
            () = self.queued.extra.stop_token.cancelled() => return,
        };
        if let Err(error) = kept {
            tracing::warn!(command = %self.queued.run_id, %error, "a command may be executed again after a restart");
        }
    }

    fn answer_approval(self, id: &str, answer: ApprovalAnswer) -> String {
        let (sender, channel) = (&self.queued.message.sender, &self.queued.extra.channel);
        approval_messages::answer_approval(self.channels, channel, sender, id, answer, self.language())
            .text()
            .to_owned()
    }

    fn providers_text(self) -> String {
        let names = self.channels.engine().provider_names();
        self.format(command_texts::PROVIDER_LIST, &[("names", &names.join(", "))])
    }

    async fn use_provider(self, provider: &str) -> Result<String, CommandStopped> {
        let names = self.channels.engine().provider_names();
        if !names.iter().any(|name| name == provider) {
            let values: &[(&str, &dyn Display)] =
                &[("provider", &format!("{provider:?}")), ("names", &names.join(", "))];
            return Ok(self.format(command_texts::PROVIDER_UNKNOWN, values));
        }
        let current = self.read_until_stopped(self.current_model()).await?;
        let name = current.as_deref().and_then(|model| model.split_once('/')).map(|(_, name)| name.to_owned());
        // Only the models that agents name are known.
        let known =
            self.agent_models().into_iter().find(|model| model.split_once('/').is_some_and(|(of, _)| of == provider));
        match known.or(name.map(|name| format!("{provider}/{name}"))) {
            Some(model) => self.set_session_model(model).await,
            None => Ok(self.format(command_texts::NO_MODEL_OF_PROVIDER, &[("provider", &provider)])),
        }
    }

    async fn use_model(self, name: &str) -> Result<String, CommandStopped> {
        let names = self.channels.engine().provider_names();
        let has_provider =
            name.split_once('/').is_some_and(|(provider, _)| names.iter().any(|known| known == provider));
        if has_provider {
            return self.set_session_model(name.to_owned()).await;
        }
        let current = self.read_until_stopped(self.current_model()).await?;
        match current.as_deref().and_then(|model| model.split_once('/')) {
            Some((provider, _)) => self.set_session_model(format!("{provider}/{name}")).await,
            None => {
                let values: &[(&str, &dyn Display)] = &[("name", &name), ("names", &names.join(", "))];
                Ok(self.format(command_texts::PROVIDER_MISSING, values))
            }
        }
    }

    async fn set_session_model(self, model: String) -> Result<String, CommandStopped> {
        let patch = SessionPatch { model: Some(model.clone()), ..SessionPatch::default() };
        let (caller, stopped) = (self.caller(), &self.queued.extra.stop_token);
        let patched =
            self.channels.engine().patch_session_until_cancelled(&caller, &self.queued.conversation, patch, stopped);
        Ok(match self.change_until_stopped(patched).await? {
            Ok(_) => self.format(command_texts::MODEL_CHOSEN, &[("model", &model)]),
            Err(OpenSessionError::Configuration(problem)) => {
                self.format(command_texts::MODEL_UNUSABLE, &[("model", &model), ("problem", &problem)])
            }
            Err(error) => {
                tracing::warn!(session = %self.queued.conversation, %error, "the model of a session was not changed");
                self.text(texts::rejection_text(error.code()))
            }
        })
    }

    async fn start_new_conversation(self) -> Result<String, CommandStopped> {
        let request = StopRequest { level: StopLevel::Gentle, reason: StopReason::Command, surface: Surface::Channel };
        let (caller, stopped) = (self.caller(), &self.queued.extra.stop_token);
        let reset =
            self.channels.engine().reset_session_until_cancelled(&caller, &self.queued.conversation, &request, stopped);
        Ok(match self.change_until_stopped(reset).await? {
            Ok(_) => self.text(command_texts::NEW_CONVERSATION),
            Err(SessionError::ForeignRunActive(_)) => self.text(command_texts::FOREIGN_RUN_ACTIVE),
            // A conversation belongs to everyone in it, so the text does not speak of an owner.
            Err(
                SessionError::NotOwner(_)
                | SessionError::ChatKey(_)
                | SessionError::Private(_)
                | SessionError::Reserved(_),
            ) => self.text(command_texts::ASK_AN_OPERATOR),
            Err(error @ SessionError::Store(_)) => {
                tracing::error!(session = %self.queued.conversation, %error, "a conversation was not reset");
                self.text(texts::rejection_text(ErrorCode::StoreUnavailable))
            }
        })
    }

    async fn status_text(self) -> Result<String, CommandStopped> {
        let runs = self.channels.engine().active_runs_of_session(&self.queued.conversation);
        let model = self.read_until_stopped(self.current_model()).await?;
        Ok(commands::status_text(&runs, model.as_deref(), self.language()))
    }

    /// The model of the next message, without keyword routing.
    async fn current_model(self) -> Option<String> {
        let engine = self.channels.engine();
        let key: &SessionKey = &self.queued.conversation;
        let view = engine.session_view(key).await.ok().flatten();
        if let Some(config) = view.and_then(|view| view.config) {
            return Some(config.model.value);
        }
        let configured_agent = self.queued.extra.channel.config.agent.clone();
        let is_wanted = |row: &AgentRow| configured_agent.as_ref().map_or(row.default, |id| *id == row.id);
        engine.list_agents().into_iter().find(is_wanted).map(|row| row.model)
    }

    fn agent_models(self) -> Vec<String> {
        self.channels.engine().list_agents().into_iter().map(|row| row.model).collect()
    }

    async fn edit_schedule(self, edit: ScheduleEdit, id: &str) -> Result<String, CommandStopped> {
        let schedules = self.schedules();
        let edited = async { Ok::<_, Interrupted<Infallible>>(schedules.edit(edit, id).await) };
        self.change_until_stopped(edited).await.map(|Ok(text)| text)
    }

    fn schedules(&self) -> SenderSchedules<'_> {
        SenderSchedules::new(self.channels.engine(), self.caller(), self.language())
    }

    fn caller(self) -> Caller {
        caller_of_message(self.queued)
    }
}

/// The sender of a command, as a caller of the engine.
pub(super) fn caller_of_message(queued: &InboxMessage<ChatOrigin>) -> Caller {
    let sender = &queued.message.sender;
    let level = queued.extra.channel.access_level(sender).unwrap_or(AccessLevel::Read);
    channel_caller(&queued.message.channel, sender, level)
}

/// Sends the result of a command to its chat.
pub(super) async fn send_outcome(channels: &Channels, queued: &InboxMessage<ChatOrigin>, text: String) {
    let ChatOrigin { channel, address, .. } = &queued.extra;
    if !channels.scope().is_cancelled() {
        return channel.notices.push(NoticePriority::Text, address, text);
    }
    // The channel is shut down and its notice queue has ended: send directly.
    let key = format!("{}-end", queued.run_id);
    if let Err(error) = send_text(channel, address, &text, &key, SendPersistence::FewTries).await {
        channel.count_undelivered();
        tracing::warn!(command = %queued.run_id, %error, "the result of a command was not delivered");
    }
}
