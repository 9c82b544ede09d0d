//! The traits for embedding programs (LifecycleHook, SessionStage, StageUndo), called with a timeout and panic
//! protection.
//!
//! A hook is called in place of a command. A stage is a part of the creation of a session, and can be undone. A panic
//! in this foreign code counts as a failure.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use quell_protocol::hook::{HookBody, HookEvent, SessionFacts};

/// The refusal of a session, with a reason for the person who asked for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a hook refused the session: {reason}")]
pub struct Veto {
    /// The reason that the hook gave, or how it failed to answer.
    pub reason: String,
}

impl Veto {
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// The answer of a hook to a message. A hook cannot change where the message goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageAnswer {
    Unchanged,
    Content(String),
    Cancel { reason: String },
}

/// Hooks of a program that embeds the engine. Every method has a default that does nothing.
///
/// The future of a method is dropped after `[hooks] timeout_ms`. One that was caused by a run or by a chat command is
/// also dropped when that is stopped, so no hook can delay a stop.
pub trait LifecycleHook: Send + Sync {
    /// The name for the log.
    fn name(&self) -> &str;

    /// Whether the hook is called at this event. An event without hooks costs nothing.
    fn wants(&self, _event: HookEvent) -> bool {
        true
    }

    /// A session is about to be created. A [`Veto`] refuses it, and so do a panic and a timeout.
    fn on_create<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, Result<(), Veto>> {
        ready(Ok(())).boxed()
    }

    /// Any other event of the daemon, a session or a run; `body.event` says which.
    fn on_event<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    /// A chat message was received, or an answer is about to be sent to a chat network; `body.event` says which. After
    /// a panic or a timeout the text stays unchanged.
    fn on_message<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, MessageAnswer> {
        ready(MessageAnswer::Unchanged).boxed()
    }

    /// The stages that the hook adds to the creation of every session. They begin in this order, after `on_create` has
    /// agreed, and are undone in the reverse order.
    fn stages(&self) -> Vec<Arc<dyn SessionStage>> {
        Vec::new()
    }
}

/// One stage of the creation of a session.
pub trait SessionStage: Send + Sync {
    /// The name for the log and for errors.
    fn name(&self) -> &str;

    /// Prepares what a session needs. The error gives a reason for the person who asked for the session.
    ///
    /// The future may be dropped at any await, by a stop or a timeout. Dropping it must release what it has prepared by
    /// then.
    fn begin<'a>(&'a self, facts: &'a SessionFacts) -> BoxFuture<'a, Result<Box<dyn StageUndo>, String>>;
}

/// Undoes a stage. It is kept until it has succeeded, so that a failed undo can be retried.
pub trait StageUndo: Send + Sync {
    /// Undoes the stage. It may be called again after an error, after a panic, or when its future was dropped half-way,
    /// but not after it has succeeded.
    fn undo(&mut self) -> BoxFuture<'_, Result<(), String>>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stage {stage:?} {problem}")]
pub struct StageError {
    pub stage: String,
    pub problem: HookCodeError,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookCodeError {
    #[error("failed: {0}")]
    Failed(String),
    #[error("panicked: {0}")]
    Panicked(String),
    #[error("took longer than {0:?}")]
    TimedOut(Duration),
}

/// Begins one stage, with a time limit; a panic in it is an error.
///
/// # Errors
/// [`StageError`]; nothing of the stage is left then.
///
/// # Cancel safety
/// As safe as the stage; see [`SessionStage::begin`].
pub async fn begin_stage(
    stage: &dyn SessionStage,
    facts: &SessionFacts,
    limit: Duration,
) -> Result<Box<dyn StageUndo>, StageError> {
    let stage_error = |problem| StageError { stage: stage.name().to_owned(), problem };
    let answer = call_guarded(limit, || stage.begin(facts)).await.map_err(stage_error)?;
    answer.map_err(|reason| stage_error(HookCodeError::Failed(reason)))
}

/// Undoes the stage called `stage`, with a time limit; a panic in it is an error.
///
/// # Errors
/// [`StageError`]: keep `undo` for the next attempt.
///
/// # Cancel safety
/// As safe as the undo itself; keep `undo` and call this again.
pub async fn undo_stage(stage: &str, undo: &mut dyn StageUndo, limit: Duration) -> Result<(), StageError> {
    let stage_error = |problem| StageError { stage: stage.to_owned(), problem };
    let answer = call_guarded(limit, || undo.undo()).await.map_err(stage_error)?;
    answer.map_err(|reason| stage_error(HookCodeError::Failed(reason)))
}

/// Calls foreign code and waits for it, at most for `limit`.
pub(super) async fn call_guarded<T, F>(limit: Duration, call: impl FnOnce() -> F) -> Result<T, HookCodeError>
where
    F: Future<Output = T>,
{
    // The call itself may panic, and so may the future that it returns.
    // waits: within the time limit below.
    let guarded_call = AssertUnwindSafe(async { call().await }).catch_unwind();
    // waits: for at most the limit; a caller for a run races it against the run's scope.
    match tokio::time::timeout(limit, guarded_call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(panic)) => Err(HookCodeError::Panicked(panic_message(panic.as_ref()))),
        Err(_elapsed) => Err(HookCodeError::TimedOut(limit)),
    }
}

/// Calls a hook for an event and waits for it. Only `on_create` has an answer. Events of messages go to
/// [`call_message_hook`] instead.
pub(super) async fn call_event_hook(
    hook: &dyn LifecycleHook,
    body: &HookBody,
    limit: Duration,
) -> Result<(), HookCodeError> {
    let answer = match body.event {
        HookEvent::Create => call_guarded(limit, || hook.on_create(body)).await?,
        _ => Ok(call_guarded(limit, || hook.on_event(body)).await?),
    };
    answer.map_err(|veto| HookCodeError::Failed(veto.reason))
}

/// Calls a hook for a message or an answer.
pub(super) async fn call_message_hook(
    hook: &dyn LifecycleHook,
    body: &HookBody,
    limit: Duration,
) -> Result<MessageAnswer, HookCodeError> {
    // waits: for at most the limit; `Hooks::filter_message` races it against the scope of the caller.
    call_guarded(limit, || hook.on_message(body)).await
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}

impl fmt::Debug for dyn LifecycleHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LifecycleHook({})", self.name())
    }
}

impl fmt::Debug for dyn StageUndo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StageUndo")
    }
}
