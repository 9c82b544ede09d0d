//! Lifecycle hooks: call commands, webhooks and embedded code when something happens to the daemon, a session, a run or
//! a chat message.
//!
//! There are two ways to call hooks. [`Hooks::call_hooks`] waits for them: the wait is raced against the scope of the caller
//! and held in its ledger, so a stop ends it at once. [`Hooks::notify`] does not wait: the event is queued, in order
//! for each session, and belongs to a scope of the hooks themselves, which the shutdown ends within its deadlines. Only
//! `on_create` may refuse anything; a failure of any other hook is only logged. The two events of messages are never
//! queued ([`Hooks::filter_message`]): queued events are stored, and the text of a message must not be. This module
//! does not know the registry or agents.

mod command;
mod config;
mod lifecycle;
mod message_filter;
mod outbox;
mod queue;
pub mod signature;
#[cfg(test)]
mod tests;
mod webhook;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quell_process::Wardens;
use quell_protocol::channel::ChannelMessage;
use quell_protocol::hook::{HookBody, HookEvent, MessageFacts, RunFacts, SessionFacts};
use quell_protocol::{Requester, ResourceKind, RunId};
use quell_scope::clock::Clock;
use quell_scope::{Cancelled, Interrupted, Point, Release, Scope};
use quell_store::{Store, StoreError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub use config::{HookConfigError, HookSettings, HookTargets};
use config::{HookTarget, redacted_url};
pub use lifecycle::{
    HookCodeError, LifecycleHook, MessageAnswer, SessionStage, StageError, StageUndo, Veto, begin_stage, undo_stage,
};
use outbox::WebhookQueue;
use queue::{HookQueue, QueuedHookJob};
use signature::WebhookSigner;
use webhook::WebhookReceiver;

/// All hooks of an engine. Clones share one state.
#[derive(Debug, Clone)]
pub struct Hooks(Arc<HooksInner>);

#[derive(Debug)]
pub struct HookDeps {
    /// The `[hooks]` section, with its secret.
    pub settings: HookSettings,
    /// Hooks of the program that embeds the engine; they are called before the configured ones.
    pub lifecycle: Vec<Arc<dyn LifecycleHook>>,
    pub wardens: Wardens,
    pub environment: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    /// The database for webhooks that are not delivered yet.
    pub store: Store,
    pub clock: Clock,
}

/// An event for hooks: something that happened, or is about to.
#[derive(Debug, Clone, PartialEq)]
pub struct HookTrigger {
    pub event: HookEvent,
    pub session: Option<SessionFacts>,
    /// The run that it happens to or that causes it. For [`Hooks::call_hooks`], only a run whose own scope is passed: commands
    /// then carry its `QUELL_RUN_ID`, and no process with that id may be alive after the run.
    pub run: Option<RunFacts>,
    /// The principal who asked for it.
    pub by: Option<Requester>,
    /// The message that was received or is about to be sent; for [`Hooks::filter_message`] only.
    pub message: Option<MessageFacts>,
}

struct HooksInner {
    hooks_by_event: BTreeMap<HookEvent, Vec<RegisteredHook>>,
    /// Hooks for messages. They are kept apart, so that a message's text cannot be queued, which would store it.
    message_hooks_by_event: BTreeMap<HookEvent, Vec<RegisteredHook>>,
    stages: Vec<Arc<dyn SessionStage>>,
    timeout: Duration,
    wardens: Wardens,
    environment: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    store: Store,
    clock: Clock,
    webhook_queues: Vec<Arc<WebhookQueue>>,
    queue: HookQueue,
    tasks: Scope,
    /// An event may be notified from a thread outside of the runtime.
    runtime: Handle,
}

/// A hook that is called at an event.
enum RegisteredHook {
    Embedded(Arc<dyn LifecycleHook>),
    Command(String),
    Url(Arc<WebhookQueue>),
}

#[derive(Debug)]
struct HookJob {
    body: HookBody,
    json: String,
    /// The `QUELL_RUN_ID` of its commands, by which their processes are found after their warden was killed.
    process_run_id: RunId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct HookFailure {
    stated_reason: Option<String>,
    description: String,
}

impl HookTrigger {
    pub fn for_daemon(event: HookEvent) -> Self {
        Self { event, session: None, run: None, by: None, message: None }
    }

    pub fn for_session(event: HookEvent, session: SessionFacts) -> Self {
        Self { session: Some(session), ..Self::for_daemon(event) }
    }

    /// An event of a run, or one that a run causes.
    pub fn for_run(event: HookEvent, session: SessionFacts, run: RunFacts) -> Self {
        Self { run: Some(run), ..Self::for_session(event, session) }
    }

    pub fn for_received_message(message: ChannelMessage) -> Self {
        let content = message.content.clone();
        let message = Some(MessageFacts { content, message });
        Self { message, ..Self::for_daemon(HookEvent::MessageReceived) }
    }

    /// The answer to a message, which is about to be sent.
    pub fn for_outgoing_message(message: ChannelMessage, answer: String) -> Self {
        let message = Some(MessageFacts { content: answer, message });
        Self { message, ..Self::for_daemon(HookEvent::MessageSending) }
    }

    #[must_use]
    pub fn with_requester(self, by: Requester) -> Self {
        Self { by: Some(by), ..self }
    }
}

impl Hooks {
    /// Checks the settings and creates the hooks. Nothing is started and nothing is sent. Their tasks run on the
    /// current runtime.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(deps: HookDeps) -> Result<Self, HookConfigError> {
        let HookDeps { settings, lifecycle, wardens, environment, cwd, store, clock } = deps;
        settings.check()?;
        let limit = Duration::from_millis(settings.timeout_ms);
        let (mut hooks_by_event, mut message_hooks_by_event, mut webhook_queues) =
            (BTreeMap::new(), BTreeMap::new(), Vec::new());
        for event in HookEvent::ALL {
            let interested = lifecycle.iter().filter(|hook| hook.wants(event));
            let mut registered: Vec<RegisteredHook> =
                interested.map(|hook| RegisteredHook::Embedded(Arc::clone(hook))).collect();
            let config_error = |problem| HookConfigError { key: event.as_str(), problem };
            for target in settings.targets_of(event).parse().map_err(config_error)? {
                registered.push(match target {
                    HookTarget::Command(command) => RegisteredHook::Command(command),
                    HookTarget::Url(url) => {
                        let secret = settings.secret.as_ref().ok_or_else(|| settings.missing_secret_error())?;
                        let receiver =
                            WebhookReceiver::new(url, limit, WebhookSigner::new(secret)).map_err(config_error)?;
                        RegisteredHook::Url(webhook_queue_for(&mut webhook_queues, receiver))
                    }
                });
            }
            if !registered.is_empty() {
                let target_map =
                    if event.has_message_text() { &mut message_hooks_by_event } else { &mut hooks_by_event };
                target_map.insert(event, registered);
            }
        }
        Ok(Self(Arc::new(HooksInner {
            hooks_by_event,
            message_hooks_by_event,
            stages: lifecycle.iter().flat_map(|hook| hook.stages()).collect(),
            timeout: limit,
            wardens,
            environment,
            cwd,
            store,
            clock,
            webhook_queues,
            queue: HookQueue::default(),
            tasks: Scope::new(clock, quell_scope::PointProbe::default()),
            runtime: Handle::current(),
        })))
    }

    /// True when a hook is registered for this event. Check it before you build a [`HookTrigger`].
    pub fn has_hooks_for(&self, event: HookEvent) -> bool {
        self.0.hooks_by_event.contains_key(&event) || self.0.message_hooks_by_event.contains_key(&event)
    }

    /// The stages that embedding programs add to the creation of a session, in their order. [`begin_stage`] and
    /// [`undo_stage`] run one.
    pub fn stages(&self) -> &[Arc<dyn SessionStage>] {
        &self.0.stages
    }

    /// The time limit of each hook. A command that does not end on SIGTERM then may take `[stop] term_ms` more.
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// As [`Hooks::ask_hooks`], for events whose hooks cannot refuse anything.
    ///
    /// # Cancel safety
    /// As [`Hooks::ask_hooks`].
    pub async fn call_hooks(&self, trigger: HookTrigger, scope: &Scope) -> Result<(), Cancelled> {
        // waits: raced in `ask_hooks`.
        match self.ask_hooks(trigger, scope).await {
            Ok(()) | Err(Interrupted::Failed(Veto { .. })) => Ok(()),
            Err(Interrupted::Cancelled) => Err(Cancelled),
        }
    }

    /// Calls the hooks of an event one after the other and waits until each has answered or timed out. With `on_create`
    /// the first refusal ends this, and every failure counts as a refusal; hooks of other events refuse nothing.
    ///
    /// The ledger of `scope` holds all of it. When the scope is cancelled, running hooks are killed at once and this
    /// returns.
    ///
    /// # Errors
    /// The veto, or [`Interrupted::Cancelled`] when the scope was cancelled first.
    ///
    /// # Cancel safety
    /// Safe: running hooks are killed, and the scope waits for that.
    pub async fn ask_hooks(&self, trigger: HookTrigger, scope: &Scope) -> Result<(), Interrupted<Veto>> {
        let event = trigger.event;
        let Some(registered) = self.0.hooks_by_event.get(&event) else { return Ok(()) };
        let mut job = self.create_job(trigger);
        if let Some(run) = &job.body.run {
            job.process_run_id = run.run_id.clone();
        }
        let held = scope.hold(ResourceKind::Hook, event.as_str());
        for entry in registered {
            let outcome = async {
                match entry {
                    RegisteredHook::Embedded(hook) => self.call_embedded(hook.as_ref(), &job).await,
                    RegisteredHook::Command(command) => command::run_command(&self.0, command, &job, scope).await,
                    RegisteredHook::Url(webhook_queue) if event == HookEvent::Create => {
                        webhook::send_until_answered(&self.0, &webhook_queue.receiver, &job, 0, scope).await.map(drop)
                    }
                    RegisteredHook::Url(webhook_queue) => {
                        // waits: for the database, raced below.
                        outbox::store_webhooks(&self.0, std::slice::from_ref(webhook_queue), &job).await;
                        Ok(())
                    }
                }
            };
            let Err(failure) = scope.race(Point::Hook, outcome).await? else { continue };
            log_failure(&job, &entry.display_name(), &failure);
            if event == HookEvent::Create {
                held.release(Release::Finished);
                return Err(Interrupted::Failed(Veto::new(failure.into_reason())));
            }
        }
        held.release(Release::Finished);
        Ok(())
    }

    /// Queues an event for its hooks and does not wait. The events of one session are handled in the order of these
    /// calls. It may be called from any thread.
    pub fn notify(&self, trigger: HookTrigger) {
        if self.0.hooks_by_event.contains_key(&trigger.event) {
            queue::enqueue(self, QueuedHookJob::new(self.create_job(trigger)));
        }
    }

    /// As [`Hooks::notify`], but first stores the webhooks of the event in the database, so that they survive the
    /// daemon.
    ///
    /// # Errors
    /// The error of the store; no hook is called then.
    ///
    /// # Cancel safety
    /// If it is dropped, the event may be lost; its webhooks are stored or not.
    pub async fn notify_durably(&self, trigger: HookTrigger) -> Result<(), StoreError> {
        let Some(registered) = self.0.hooks_by_event.get(&trigger.event) else { return Ok(()) };
        let job = self.create_job(trigger);
        // waits: for the database, in a task of the engine itself; no run waits here.
        outbox::try_store_webhooks(&self.0, &webhook_queues_of(registered), &job).await?;
        queue::enqueue(self, QueuedHookJob::stored(job));
        Ok(())
    }

    /// As [`Hooks::notify`], and waits until all hooks of the event have ended, at most for `limit`; the rest then goes
    /// on.
    ///
    /// # Cancel safety
    /// Safe: the hooks go on without the caller.
    pub async fn notify_and_wait(&self, trigger: HookTrigger, limit: Duration) {
        if !self.0.hooks_by_event.contains_key(&trigger.event) {
            return;
        }
        let (done, finished) = oneshot::channel();
        queue::enqueue(self, QueuedHookJob::new(self.create_job(trigger)).with_done_signal(done));
        // A job that is dropped from the queue counts as ended, too.
        // waits: for at most `limit`, in the clean-up of a session; no run waits here.
        let _ = tokio::time::timeout(limit, finished).await;
    }

    fn create_job(&self, trigger: HookTrigger) -> HookJob {
        let HookTrigger { event, session, run, by, message } = trigger;
        let id = match (&run, event) {
            // The same id after a crash, if the event was queued but not marked as reported.
            (Some(run), HookEvent::RunEnd) => format!("run-end-{}", run.run_id),
            _ => uuid::Uuid::now_v7().to_string(),
        };
        // No process with a run's id may be alive after the run, and not every event ends with its run.
        let process_run_id = RunId::parse(format!("hook-{}", uuid::Uuid::now_v7()));
        let Ok(process_run_id) = process_run_id else { unreachable!("a word and a UUID are a valid run id") };
        let message = message.filter(|_| event.has_message_text());
        let body = HookBody { id, event, at: self.0.clock.rfc3339(self.0.clock.now()), session, run, by, message };
        let json = to_json(&body);
        HookJob { body, json, process_run_id }
    }

    async fn call_embedded(&self, hook: &dyn LifecycleHook, job: &HookJob) -> Result<(), HookFailure> {
        // waits: for at most the timeout; `ask` and `queue` race it against the scope of the caller.
        match lifecycle::call_event_hook(hook, &job.body, self.0.timeout).await {
            Ok(()) => Ok(()),
            Err(HookCodeError::Failed(reason)) => {
                Err(HookFailure { stated_reason: Some(reason), description: "it refused".to_owned() })
            }
            Err(problem) => {
                Err(HookFailure { stated_reason: None, description: format!("the hook {} {problem}", hook.name()) })
            }
        }
    }
}

impl RegisteredHook {
    fn webhook_queue(&self) -> Option<Arc<WebhookQueue>> {
        match self {
            Self::Url(webhook_queue) => Some(Arc::clone(webhook_queue)),
            Self::Embedded(_) | Self::Command(_) => None,
        }
    }

    /// The name for the log.
    fn display_name(&self) -> String {
        match self {
            Self::Embedded(hook) => hook.name().to_owned(),
            Self::Command(command) => command.clone(),
            Self::Url(webhook_queue) => redacted_url(&webhook_queue.receiver.url),
        }
    }
}

fn webhook_queues_of(registered: &[RegisteredHook]) -> Vec<Arc<WebhookQueue>> {
    registered.iter().filter_map(RegisteredHook::webhook_queue).collect()
}

impl HookFailure {
    /// The reason for the caller who is refused.
    fn into_reason(self) -> String {
        self.stated_reason.unwrap_or(self.description)
    }
}

/// The body has only names, numbers and texts, so this cannot fail.
fn to_json(body: &HookBody) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

/// The queue of this receiver. There is one for each URL, however many events use it.
fn webhook_queue_for(webhook_queues: &mut Vec<Arc<WebhookQueue>>, receiver: WebhookReceiver) -> Arc<WebhookQueue> {
    if let Some(known) = webhook_queues.iter().find(|webhook_queue| webhook_queue.receiver.url == receiver.url) {
        return Arc::clone(known);
    }
    let webhook_queue = Arc::new(WebhookQueue::new(receiver));
    webhook_queues.push(Arc::clone(&webhook_queue));
    webhook_queue
}

fn log_failure(job: &HookJob, hook: &str, failure: &HookFailure) {
    let HookBody { id, event, session, run, .. } = &job.body;
    let session = session.as_ref().map(|session| tracing::field::display(&session.key));
    let run = run.as_ref().map(|run| tracing::field::display(&run.run_id));
    let said = failure.stated_reason.as_deref();
    tracing::warn!(%event, id, session, run, hook, how = failure.description, said, "a hook refused or failed");
}

impl std::fmt::Debug for HooksInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HooksInner").field("events", &self.hooks_by_event.keys()).finish_non_exhaustive()
    }
}
