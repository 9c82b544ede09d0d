//! Lifecycle hooks: what is run or called when something happens to the daemon, a session, a run or a message of a chat network.
//!
//! A hook is a command under a warden, a webhook, or code of a program that embeds the engine. Who waits for one *asks*: that
//! is raced against the scope of whoever caused it and held in its ledger, so a stop ends it at once. Who does not *tells*:
//! that is queued, in order for each session, and belongs to a scope of the hooks' own, which the shutdown ends within its
//! deadlines. Only `on_create` may refuse anything; of all others a failure is a line in the log. The two events of messages
//! are only ever asked (`messages`): told ones are stored, and a message's text is nobody's but its conversation's. This module
//! knows no registry and no agents.

mod command;
mod config;
mod lifecycle;
mod messages;
mod outbox;
mod queue;
pub mod signature;
#[cfg(test)]
mod tests;
mod webhook;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quell_protocol::channel::ChannelMessage;
use quell_protocol::hook::{HookBody, HookEvent, MessageFacts, RunFacts, SessionFacts};
use quell_protocol::{By, Leftover, ResourceKind, RunId};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::proc::Wardens;
use crate::scope::{Cancelled, Point, Scope};
use crate::store::{Store, StoreError};
pub use config::{BadHook, HookSettings, Targets};
use config::{Target, shown_url};
pub use lifecycle::{LifecycleHook, MessageAnswer, Problem, Stage, StageError, Undo, Veto, begin_stage, undo_stage};
use outbox::Lane;
use queue::{Job, Queue};
use signature::Signer;
use webhook::Receiver;

/// All hooks of an engine. Clones are the same.
#[derive(Debug, Clone)]
pub struct Hooks(Arc<Inner>);

/// What hooks are made with.
#[derive(Debug)]
pub struct HookGround {
    /// The section of the configuration, with its secret.
    pub settings: HookSettings,
    /// Hooks of the program that embeds the engine; they come before the configured ones.
    pub lifecycle: Vec<Arc<dyn LifecycleHook>>,
    /// Starts commands.
    pub wardens: Wardens,
    /// The environment of commands.
    pub environment: Vec<(OsString, OsString)>,
    /// Where commands run.
    pub cwd: PathBuf,
    /// Keeps webhooks until they are delivered.
    pub store: Store,
    /// The engine's clock.
    pub clock: Clock,
}

/// Something that happened, or is about to, as the caller knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Happening {
    /// What.
    pub event: HookEvent,
    /// To which session.
    pub session: Option<SessionFacts>,
    /// To which run, or because of which. With [`Hooks::ask`] only a run whose own scope is handed in: commands then carry
    /// its `QUELL_RUN_ID`, and nothing that does may be alive after the run.
    pub run: Option<RunFacts>,
    /// Who asked for it.
    pub by: Option<By>,
    /// Which message is about to be taken or sent; for [`Hooks::ask_message`] only.
    pub message: Option<MessageFacts>,
}

struct Inner {
    doers: BTreeMap<HookEvent, Vec<Doer>>,
    /// Who is asked about messages. They stand apart, so that a message's text cannot be told, which would store it.
    readers: BTreeMap<HookEvent, Vec<Doer>>,
    stages: Vec<Arc<dyn Stage>>,
    limit: Duration,
    wardens: Wardens,
    environment: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    store: Store,
    clock: Clock,
    /// One for each URL.
    lanes: Vec<Arc<Lane>>,
    queue: Queue,
    /// Tasks of the hooks' own.
    tasks: Scope,
    /// An event may be told from a thread that is none of the runtime's.
    runtime: Handle,
}

/// Who does something at an event.
enum Doer {
    Embedded(Arc<dyn LifecycleHook>),
    Command(String),
    Url(Arc<Lane>),
}

/// An event, ready to be handed out.
#[derive(Debug)]
struct Errand {
    body: HookBody,
    json: String,
    /// By this value the processes of its commands are found when their warden is killed.
    mark: RunId,
}

/// How a hook failed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    /// What it said itself.
    said: Option<String>,
    /// What happened.
    how: String,
}

impl Happening {
    /// Something that happens to the daemon.
    #[must_use]
    pub fn of_daemon(event: HookEvent) -> Self {
        Self { event, session: None, run: None, by: None, message: None }
    }

    /// Something that happens to a session.
    #[must_use]
    pub fn of_session(event: HookEvent, session: SessionFacts) -> Self {
        Self { session: Some(session), ..Self::of_daemon(event) }
    }

    /// Something that happens to a run, or that a run does.
    #[must_use]
    pub fn of_run(event: HookEvent, session: SessionFacts, run: RunFacts) -> Self {
        Self { run: Some(run), ..Self::of_session(event, session) }
    }

    /// A message that has come.
    #[must_use]
    pub fn of_received(message: ChannelMessage) -> Self {
        let content = message.content.clone();
        let message = Some(MessageFacts { content, message });
        Self { message, ..Self::of_daemon(HookEvent::MessageReceived) }
    }

    /// The answer to a message, about to be sent.
    #[must_use]
    pub fn of_sending(message: ChannelMessage, answer: String) -> Self {
        let message = Some(MessageFacts { content: answer, message });
        Self { message, ..Self::of_daemon(HookEvent::MessageSending) }
    }

    /// The same, with who asked for it.
    #[must_use]
    pub fn by(self, by: By) -> Self {
        Self { by: Some(by), ..self }
    }
}

impl Hooks {
    /// Makes the configured hooks ready. Nothing is started and nothing is sent. Its tasks will run on the runtime that this
    /// is called on.
    ///
    /// # Errors
    /// [`BadHook`] says which key is wrong and what would be right.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(ground: HookGround) -> Result<Self, BadHook> {
        let HookGround { settings, lifecycle, wardens, environment, cwd, store, clock } = ground;
        settings.check()?;
        let limit = Duration::from_millis(settings.timeout_ms);
        let (mut doers, mut readers, mut lanes) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        for event in HookEvent::ALL {
            let wanting = lifecycle.iter().filter(|hook| hook.wants(event));
            let mut of_event: Vec<Doer> = wanting.map(|hook| Doer::Embedded(Arc::clone(hook))).collect();
            let bad = |problem| BadHook { key: event.word(), problem };
            for target in settings.of(event).parse().map_err(bad)? {
                of_event.push(match target {
                    Target::Command(command) => Doer::Command(command),
                    Target::Url(url) => {
                        let secret = settings.secret.as_ref().ok_or_else(|| settings.without_secret())?;
                        let receiver = Receiver::new(url, limit, Signer::new(secret)).map_err(bad)?;
                        Doer::Url(lane_to(&mut lanes, receiver))
                    }
                });
            }
            if !of_event.is_empty() {
                let place = if event.holds_text() { &mut readers } else { &mut doers };
                place.insert(event, of_event);
            }
        }
        Ok(Self(Arc::new(Inner {
            doers,
            readers,
            stages: lifecycle.iter().flat_map(|hook| hook.stages()).collect(),
            limit,
            wardens,
            environment,
            cwd,
            store,
            clock,
            lanes,
            queue: Queue::default(),
            tasks: Scope::new(clock, crate::scope::Probe::default()),
            runtime: Handle::current(),
        })))
    }

    /// Begins to deliver webhooks, those first that an earlier daemon could not. Call it once.
    ///
    /// # Cancel safety
    /// Not to be dropped: what it had not started yet is not delivered.
    pub async fn start(&self) {
        // waits: for the database, at the start of the daemon.
        outbox::start(self).await;
    }

    /// True when somebody wants to hear of this event. Ask before you build what is to be told.
    #[must_use]
    pub fn has(&self, event: HookEvent) -> bool {
        self.0.doers.contains_key(&event) || self.0.readers.contains_key(&event)
    }

    /// The stages that embedding programs add to the making of a session, in their order. [`begin_stage`] and [`undo_stage`]
    /// run one.
    #[must_use]
    pub fn stages(&self) -> &[Arc<dyn Stage>] {
        &self.0.stages
    }

    /// How long each hook may take. A command that does not end on SIGTERM then may take `[stop] term_ms` more.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.0.limit
    }

    /// Hands an event out and waits until every hook has answered or its time is used up. With `on_create` the first one that
    /// refuses ends it, and whatever is no clear agreement refuses; at any other event the answer is always `Ok(Ok(()))`.
    ///
    /// All of it is held in the ledger of `scope`. When that is cancelled, what was started is killed at once and this returns.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled first.
    ///
    /// # Cancel safety
    /// Safe: what was started is killed, and the scope waits for that.
    pub async fn ask(&self, happening: Happening, scope: &Scope) -> Result<Result<(), Veto>, Cancelled> {
        let event = happening.event;
        let Some(doers) = self.0.doers.get(&event) else { return Ok(Ok(())) };
        let mut errand = self.errand(happening);
        if let Some(run) = &errand.body.run {
            errand.mark = run.run_id.clone();
        }
        let held = scope.hold(ResourceKind::Hook, event.word());
        for doer in doers {
            let asked = async {
                match doer {
                    Doer::Embedded(hook) => self.call(hook.as_ref(), &errand).await,
                    Doer::Command(command) => command::run(&self.0, command, &errand, scope).await,
                    Doer::Url(lane) if event == HookEvent::Create => {
                        webhook::ask(&self.0, &lane.receiver, &errand, 0, scope).await.map(drop)
                    }
                    Doer::Url(lane) => {
                        // waits: for the database, raced below.
                        outbox::put(&self.0, std::slice::from_ref(lane), &errand).await;
                        Ok(())
                    }
                }
            };
            let Err(failure) = scope.race(Point::Hook, asked).await? else { continue };
            warn(&errand, &doer.shown(), &failure);
            if event == HookEvent::Create {
                held.release("finished");
                return Ok(Err(Veto::new(failure.reason())));
            }
        }
        held.release("finished");
        Ok(Ok(()))
    }

    /// Hands an event out and waits for nobody. Events of one session are handed out in the order in which they were told.
    /// From any thread.
    pub fn tell(&self, happening: Happening) {
        if self.0.doers.contains_key(&happening.event) {
            queue::push(self, Job::new(self.errand(happening)));
        }
    }

    /// As [`Hooks::tell`]; when it returns, the webhooks of the event are in the database, and so survive the daemon.
    ///
    /// # Errors
    /// The store's error; nobody was told then.
    ///
    /// # Cancel safety
    /// Dropped half-way it may not have told anybody; the webhooks are stored or not.
    pub async fn record(&self, happening: Happening) -> Result<(), StoreError> {
        let Some(doers) = self.0.doers.get(&happening.event) else { return Ok(()) };
        let errand = self.errand(happening);
        let lanes: Vec<Arc<Lane>> = doers.iter().filter_map(Doer::lane).collect();
        // waits: for the database, in a task of the engine's own; no run waits here.
        outbox::try_put(&self.0, &lanes, &errand).await?;
        queue::push(self, Job::recorded(errand));
        Ok(())
    }

    /// As [`Hooks::tell`], and waits until every hook of it is over, but not longer than `limit`; what is not over by then
    /// goes on.
    ///
    /// # Cancel safety
    /// Safe: it goes on without its caller.
    pub async fn tell_and_wait(&self, happening: Happening, limit: Duration) {
        if !self.0.doers.contains_key(&happening.event) {
            return;
        }
        let (done, over) = oneshot::channel();
        queue::push(self, Job::new(self.errand(happening)).awaited(done));
        // A job that is dropped from the queue is over, too.
        // waits: for at most the limit, in the clean-up of a session; no run waits here.
        let _ = tokio::time::timeout(limit, over).await;
    }

    /// Sees to it that nobody who waits for a hook holds up the daemon's end: what is at work at `end` or longer than a moment
    /// after it is told to end, and killed half a second later. It never returns.
    ///
    /// # Cancel safety
    /// Safe: to be dropped when the daemon's end is over.
    pub async fn hurry(&self, end: Instant) -> Infallible {
        // waits: beside the daemon's end.
        queue::hurry(self, end).await
    }

    /// Takes no more events; what is queued goes on. Not async.
    pub fn close(&self) {
        self.0.queue.close();
    }

    /// Kills every hook that nobody's run is waiting for, and forgets what is queued. Not async.
    pub fn kill(&self) {
        queue::kill(self);
    }

    /// Waits until no hook is at work and every webhook has been tried: until `gentle` by itself, then with SIGTERM until
    /// `force`, then with SIGKILL until `give_up`. Answers what is left, by name, each with the
    /// `QUELL_RUN_ID` of its processes. Call [`Hooks::close`] first.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; call it again.
    pub async fn closed(&self, gentle: Instant, force: Instant, give_up: Instant) -> Vec<(RunId, Leftover)> {
        // waits: for hooks at the end of the daemon, until its deadlines.
        queue::closed(self, gentle, force, give_up).await
    }

    fn errand(&self, happening: Happening) -> Errand {
        let Happening { event, session, run, by, message } = happening;
        let id = match (&run, event) {
            // The same after a crash that came before it was known that this was told.
            (Some(run), HookEvent::RunEnd) => format!("run-end-{}", run.run_id),
            _ => uuid::Uuid::now_v7().to_string(),
        };
        // Nothing with a run's id may be alive after the run, and not every event is over when its run is.
        let mark = RunId::parse(format!("hook-{}", uuid::Uuid::now_v7()));
        let Ok(mark) = mark else { unreachable!("a word and a UUID are a valid run id") };
        let message = message.filter(|_| event.holds_text());
        let body = HookBody { id, event, at: self.0.clock.rfc3339(self.0.clock.now()), session, run, by, message };
        let json = json_of(&body);
        Errand { body, json, mark }
    }

    async fn call(&self, hook: &dyn LifecycleHook, errand: &Errand) -> Result<(), Failure> {
        // waits: for at most the limit; `ask` and `queue` race it against the scope of whoever caused it.
        match lifecycle::call(hook, &errand.body, self.0.limit).await {
            Ok(()) => Ok(()),
            Err(Problem::Failed(reason)) => Err(Failure { said: Some(reason), how: "it refused".to_owned() }),
            Err(problem) => Err(Failure { said: None, how: format!("the hook {} {problem}", hook.name()) }),
        }
    }
}

impl Doer {
    fn lane(&self) -> Option<Arc<Lane>> {
        match self {
            Self::Url(lane) => Some(Arc::clone(lane)),
            Self::Embedded(_) | Self::Command(_) => None,
        }
    }

    /// For the log.
    fn shown(&self) -> String {
        match self {
            Self::Embedded(hook) => hook.name().to_owned(),
            Self::Command(command) => command.clone(),
            Self::Url(lane) => shown_url(&lane.receiver.url),
        }
    }
}

impl Failure {
    /// For whoever is refused.
    fn reason(self) -> String {
        self.said.unwrap_or(self.how)
    }
}

/// Names, numbers and texts only: it cannot fail.
fn json_of(body: &HookBody) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

/// The lane to this receiver; one for each URL, however many events go there.
fn lane_to(lanes: &mut Vec<Arc<Lane>>, receiver: Receiver) -> Arc<Lane> {
    if let Some(known) = lanes.iter().find(|lane| lane.receiver.url == receiver.url) {
        return Arc::clone(known);
    }
    let lane = Arc::new(Lane::new(receiver));
    lanes.push(Arc::clone(&lane));
    lane
}

fn warn(errand: &Errand, hook: &str, failure: &Failure) {
    let HookBody { id, event, session, run, .. } = &errand.body;
    let session = session.as_ref().map(|session| tracing::field::display(&session.key));
    let run = run.as_ref().map(|run| tracing::field::display(&run.run_id));
    let said = failure.said.as_deref();
    tracing::warn!(%event, id, session, run, hook, how = failure.how, said, "a hook did not agree or failed");
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").field("events", &self.doers.keys()).finish_non_exhaustive()
    }
}
