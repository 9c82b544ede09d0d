//! From letters to runs: whose turn it is, what is asked of Quell itself, and which run a message becomes. It decides nothing
//! that the inbox and the registry decide, and waits for no run.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use quell_engine::channel::{Errand, Orders};
use quell_engine::dispatch::{StopText, Submission, SubmitError, Submitted};
use quell_kernel::channel::commands::Command;
use quell_kernel::channel::inbox::{Letter, Next};
use quell_kernel::channel::sanitise::Narration;
use quell_kernel::queue::Refusal;
use quell_protocol::api::OnBusy;
use quell_protocol::{ChannelMessage, RunId, StopReason, Verdict};
use tokio::time::sleep_until;

use super::answer::Answer;
use super::present::present;
use super::{Channels, Extra, caller, commands, leaves, words};
use crate::channels::config::ChannelKind;

/// Stands for a message of which nothing but files came.
const FILES_ONLY: &str = "(files, without words)";

/// Takes letters whose turn it is, until the channels are shut down.
pub(super) async fn dispatch(channels: Channels) {
    let mut commands = FuturesUnordered::new();
    let mut messages = FuturesUnordered::new();
    loop {
        let now = channels.now();
        let next = channels.inbox().next(now);
        let until = match next {
            Next::Take(letters) => {
                let is_command = letters.first().is_some_and(|first| Command::of(&first.message.content).is_some());
                let in_flight = if is_command { &mut commands } else { &mut messages };
                in_flight.push(see_to(channels.clone(), letters));
                continue;
            }
            Next::Wait(moment) => Some(channels.clock().instant(moment)),
            Next::Nothing => None,
        };
        let pause = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        // All of these only wait: a letter in flight stays in the set when another arm is quicker.
        tokio::select! {
            () = channels.scope().cancelled() => break,
            () = channels.0.news.notified() => {}
            () = pause => {}
            Some(()) = commands.next() => {}
            Some(()) = messages.next() => {}
        }
    }
    // A message of which no run was made goes as if it had not been heard. Commands have been stopped, and say what came of them.
    drop(messages);
    tokio::select! {
        () = channels.scope().forced() => {}
        () = async { while commands.next().await.is_some() {} } => {}
    }
}

async fn see_to(channels: Channels, letters: Vec<Letter<Extra>>) {
    let Some(letter) = as_one(letters) else { return };
    let conversation = letter.conversation.clone();
    let work = async {
        (channels.0.look)();
        match Command::of(&letter.message.content) {
            Some(command) => commands::obey(&channels, &letter, command).await,
            None => submit(&channels, letter).await,
        }
    };
    // A bug in one message's way ends that message, and not the channels.
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        tracing::error!(%conversation, "the way of a message panicked");
    }
    channels.inbox().done(&conversation);
    channels.tell_left();
}

/// Letters that were collected are one, with the id and the place of the first.
fn as_one(letters: Vec<Letter<Extra>>) -> Option<Letter<Extra>> {
    letters.into_iter().reduce(|mut first, next| {
        first.message.content = [first.message.content.as_str(), &next.message.content].join("\n");
        first.message.attachments.extend(next.message.attachments);
        first
    })
}

async fn submit(channels: &Channels, letter: Letter<Extra>) {
    let Letter { message, conversation, run, extra, .. } = letter;
    let channel = &extra.channel;
    let Some(rights) = channel.rights(&message.sender) else { return };
    let settings = channels.settings();
    let messages = settings.settings.messages;
    let orders = Orders {
        notes: notes(&extra),
        files_note: takes_files(extra.channel.config.kind).then(|| FILES.to_owned()),
        model: settings.settings.routing.model_for(&message.content),
        history_chars: messages.history_budget_chars,
    };
    let who = caller(&message.channel, &message.sender, rights);
    let text = if message.content.is_empty() { FILES_ONLY.to_owned() } else { message.content.clone() };
    let narration = if messages.sanitize_narration { Narration::Drop } else { Narration::Keep };
    let answer = Arc::new(Answer::new(channels, &extra, run.clone(), message.clone(), narration));
    let submission = Submission {
        session: conversation,
        text,
        agent: channel.config.agent.clone(),
        idempotency_key: Some(run),
        on_busy: on_busy(channels, channel.on_busy(), &message),
        timeout: Some(messages.time()),
        stop_text: StopText::Literal,
        errand: Some(Errand::new(message.clone(), orders, Arc::clone(&answer) as _)),
    };
    match channels.engine().submit(&who, submission).await {
        Ok(Submitted::New(taken)) => {
            channels.scope().spawn(present(channels.clone(), answer, taken.run_id));
        }
        Ok(Submitted::Repeat(known)) => told_again(channels, &extra, &known.run_id).await,
        Ok(Submitted::Stopped(_)) => {}
        Err(SubmitError::Refused(Refusal::QueueFull { .. })) => {
            channel.outlet.seldom(&extra.place, &message.sender, words::CROWDED);
        }
        Err(error) => refused(&extra, &message, &error),
    }
}

/// A message that hooks want to see, or with which files come, is prepared by a run of its own: it cannot join the one at work.
fn on_busy(channels: &Channels, configured: OnBusy, message: &ChannelMessage) -> OnBusy {
    let prepared = channels.engine().asks_about_messages() || !message.attachments.is_empty();
    if configured == OnBusy::Steer && prepared { OnBusy::Queue } else { configured }
}

/// A network told a message again, after a restart of the daemon or of itself. If the daemon went down before it was answered,
/// whoever asked is told so, unless the chat shows something of it that is put right anyway.
async fn told_again(channels: &Channels, extra: &Extra, run: &RunId) {
    if leaves::is_left(channels, run) {
        return;
    }
    let view = channels.engine().run(run).await.ok().flatten();
    let lost = Some(Verdict::Aborted { reason: StopReason::DaemonStopped, by: None });
    if view.is_some_and(|view| view.verdict == lost) {
        extra.channel.outlet.say(&extra.place, words::RESTARTED);
    }
}

fn refused(extra: &Extra, message: &ChannelMessage, error: &SubmitError) {
    tracing::warn!(channel = message.channel, sender = message.sender, %error, "a message was not taken");
    extra.channel.outlet.say(&extra.place, words::not_taken(error.code()));
}

/// What a model is told of how this channel wants to be answered.
fn notes(extra: &Extra) -> Vec<String> {
    let config = &extra.channel.config;
    let of_network = match config.kind {
        ChannelKind::Irc => {
            "Answer in plain text without Markdown, in few short lines: long ones are cut into several messages."
        }
        ChannelKind::Telegram
        | ChannelKind::Discord
        | ChannelKind::Slack
        | ChannelKind::Matrix
        | ChannelKind::Webhook => "Answer in Markdown.",
    };
    [of_network.to_owned()].into_iter().chain(config.instructions.clone()).collect()
}

/// What a model is told that may send files.
const FILES: &str = "A line [IMAGE:path], [FILE:path], [AUDIO:path] or [VIDEO:path] sends a file of your workdir.";

fn takes_files(kind: ChannelKind) -> bool {
    match kind {
        ChannelKind::Telegram | ChannelKind::Discord | ChannelKind::Slack | ChannelKind::Matrix => true,
        ChannelKind::Irc | ChannelKind::Webhook => false,
    }
}
