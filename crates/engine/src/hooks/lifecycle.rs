//! Hooks of a program that embeds the engine: a trait in place of a command, and stages that it adds to the making of a
//! session, each with what takes it back.
//!
//! It is somebody else's code: each call has a time limit, and a panic in it is an answer like any other.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use quell_protocol::hook::{HookBody, HookEvent, SessionFacts};

/// Why a session is not made, in words for the person who asked for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a hook refused the session: {reason}")]
pub struct Veto {
    /// The reason that the hook gave, or how it failed to answer.
    pub reason: String,
}

impl Veto {
    /// A veto for this reason.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// What a hook makes of a message or of an answer. Where it goes is not the hook's to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageAnswer {
    /// It goes on as it is.
    Unchanged,
    /// It goes on with this text.
    Content(String),
    /// It goes no further.
    Cancel {
        /// Why, in words for people.
        reason: String,
    },
}

/// What a program that embeds the engine wants to hear of. Every method has a default that does nothing.
///
/// A method has the time of `[hooks] timeout_ms`; then its future is dropped. One that is caused by a run, or by a command of a
/// chat, is dropped when that is stopped, too: no hook can hold a stop up.
pub trait LifecycleHook: Send + Sync {
    /// For the log.
    fn name(&self) -> &str;

    /// Whether it wants to hear of this event. What nobody wants costs nothing.
    fn wants(&self, _event: HookEvent) -> bool {
        true
    }

    /// A session is about to be made. A [`Veto`] refuses that, and so do a panic and a used-up time.
    fn on_create<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, Result<(), Veto>> {
        ready(Ok(())).boxed()
    }

    /// A session is used.
    fn on_activate<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    /// A session has been idle for too long; its clean-up comes next.
    fn on_expire<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    /// A session is cleaned up.
    fn on_terminate<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    /// A run is about to take its first step.
    fn on_run_start<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    /// A run is over.
    fn on_run_end<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    /// The engine is ready.
    fn on_start<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    /// The engine begins to shut down.
    fn on_shutdown<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    /// A message has come from a chat network. It goes on unchanged after a panic and a used-up time.
    fn on_message_received<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, MessageAnswer> {
        ready(MessageAnswer::Unchanged).boxed()
    }

    /// An answer is about to go to a chat network. It goes on unchanged after a panic and a used-up time.
    fn on_message_sending<'a>(&'a self, _body: &'a HookBody) -> BoxFuture<'a, MessageAnswer> {
        ready(MessageAnswer::Unchanged).boxed()
    }

    /// Stages that it adds to the making of every session. They begin in this order, after `on_create` has agreed, and are
    /// taken back in the reverse one.
    fn stages(&self) -> Vec<Arc<dyn Stage>> {
        Vec::new()
    }
}

/// One stage of the making of a session.
pub trait Stage: Send + Sync {
    /// For the log and for errors.
    fn name(&self) -> &str;

    /// Makes what a session needs. The error says why that is not possible, for the person who asked for the session.
    ///
    /// The future may be dropped at any await, by a stop or when its time is used up: what it has made by then is given back
    /// by being dropped.
    fn begin<'a>(&'a self, facts: &'a SessionFacts) -> BoxFuture<'a, Result<Box<dyn Undo>, String>>;
}

/// Takes back what a stage made. It stays with its owner until it has succeeded, so that a failed one can be tried again.
pub trait Undo: Send + Sync {
    /// Takes it back. It may be called again after an error, a panic, or when its future was dropped half-way, and not after
    /// it has succeeded.
    fn undo(&mut self) -> BoxFuture<'_, Result<(), String>>;
}

/// A stage, or what takes it back, did not do its work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stage {stage:?} {problem}")]
pub struct StageError {
    /// The stage.
    pub stage: String,
    /// What happened.
    pub problem: Problem,
}

/// What somebody else's code came to instead of doing its work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Its own words.
    #[error("failed: {0}")]
    Failed(String),
    /// It panicked.
    #[error("panicked: {0}")]
    Panicked(String),
    /// Its time was used up.
    #[error("took longer than {0:?}")]
    TookTooLong(Duration),
}

/// Lets one stage begin, for at most `limit`; a panic in it is an error.
///
/// # Errors
/// [`StageError`]; nothing of the stage is left then.
///
/// # Cancel safety
/// As safe as the stage, which is asked to be.
pub async fn begin_stage(
    stage: &dyn Stage,
    facts: &SessionFacts,
    limit: Duration,
) -> Result<Box<dyn Undo>, StageError> {
    let named = |problem| StageError { stage: stage.name().to_owned(), problem };
    let answer = guarded(limit, || stage.begin(facts)).await.map_err(named)?;
    answer.map_err(|reason| named(Problem::Failed(reason)))
}

/// Tries to take back what the stage called `stage` made, for at most `limit`; a panic in it is an error. After an error it
/// can be tried again.
///
/// # Errors
/// [`StageError`]: keep `undo` for the next try.
///
/// # Cancel safety
/// As safe as what it calls; keep `undo`, and call it again.
pub async fn undo_stage(stage: &str, undo: &mut dyn Undo, limit: Duration) -> Result<(), StageError> {
    let named = |problem| StageError { stage: stage.to_owned(), problem };
    let answer = guarded(limit, || undo.undo()).await.map_err(named)?;
    answer.map_err(|reason| named(Problem::Failed(reason)))
}

/// Calls somebody else's code and waits for it, for at most `limit`.
pub(super) async fn guarded<T, F>(limit: Duration, call: impl FnOnce() -> F) -> Result<T, Problem>
where
    F: Future<Output = T>,
{
    // The call itself may panic as well as what it answers.
    let work = AssertUnwindSafe(async { call().await }).catch_unwind();
    // waits: for at most the limit; whoever calls this for a run races it against the run's scope.
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(panic)) => Err(Problem::Panicked(words_of(panic.as_ref()))),
        Err(_elapsed) => Err(Problem::TookTooLong(limit)),
    }
}

/// Tells a hook of an event and waits for it. Only `on_create` has something to answer. The events of messages are asked by
/// [`ask`] and nobody tells them.
pub(super) async fn call(hook: &dyn LifecycleHook, body: &HookBody, limit: Duration) -> Result<(), Problem> {
    let answer = match body.event {
        HookEvent::Create => guarded(limit, || hook.on_create(body)).await?,
        HookEvent::Activate => Ok(guarded(limit, || hook.on_activate(body)).await?),
        HookEvent::Expire => Ok(guarded(limit, || hook.on_expire(body)).await?),
        HookEvent::Terminate => Ok(guarded(limit, || hook.on_terminate(body)).await?),
        HookEvent::RunStart => Ok(guarded(limit, || hook.on_run_start(body)).await?),
        HookEvent::RunEnd => Ok(guarded(limit, || hook.on_run_end(body)).await?),
        HookEvent::Start => Ok(guarded(limit, || hook.on_start(body)).await?),
        HookEvent::Shutdown => Ok(guarded(limit, || hook.on_shutdown(body)).await?),
        HookEvent::MessageReceived | HookEvent::MessageSending => Ok(()),
    };
    answer.map_err(|veto| Problem::Failed(veto.reason))
}

/// Asks a hook about a message, or about an answer.
pub(super) async fn ask(hook: &dyn LifecycleHook, body: &HookBody, limit: Duration) -> Result<MessageAnswer, Problem> {
    guarded(limit, || match body.event {
        HookEvent::MessageSending => hook.on_message_sending(body),
        _ => hook.on_message_received(body),
    })
    // waits: for at most the limit; `Hooks::ask_message` races it against the scope of whoever caused it.
    .await
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a word").to_owned()
}

impl fmt::Debug for dyn LifecycleHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LifecycleHook({})", self.name())
    }
}

impl fmt::Debug for dyn Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stage({})", self.name())
    }
}

impl fmt::Debug for dyn Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Undo")
    }
}
