//! `RunControl` of a live run: phase, budget, steering, sub-runs and their news.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_kernel::StopLevel;
use quell_kernel::registry::RunPhase;
use quell_kernel::turn::BACKGROUND_NEWS_PREFIX;
use quell_kernel::visibility::Sharing;
use quell_protocol::api::{AccessLevel, OnBusy};
use quell_protocol::schedule::{ScheduleDelivery, ScheduleRequest, ScheduleView};
use quell_protocol::{AgentId, Principal, ResourceKind, Rung, SessionKey, StopReason, Surface, Usage, Verdict};
use quell_scope::{Held, Release};
use quell_store::StoreError;
use quell_tools::{BackupFuture, ChangedFile, FileBackup, ToolOutput};

use super::{SessionClaim, Sessions};
use crate::access::is_named_token;
use crate::agent::{RunControl, SubRunRequest, SubRunSession, sub_run_report};
use crate::channel_origin::ScheduleCreator;
use crate::cluster::Cluster;
use crate::live_run::{ChangeOrigin, LiveRun, RunProgress, RunRequest, RunWork};
use crate::schedules::ScheduleChangeError;

pub(super) struct SessionRunControl<'a> {
    pub(super) sessions: &'a Sessions,
    pub(super) live_run: &'a Arc<LiveRun>,
}

impl FileBackup for SessionRunControl<'_> {
    fn keep_files(&self, files: Vec<ChangedFile>) -> BackupFuture<'_> {
        let (live_run, clock) = (self.live_run, self.sessions.0.runs.clock());
        let (lineage, node) = (live_run.lineage(), self.sessions.0.cluster.as_ref().map(Cluster::node));
        let origin = ChangeOrigin { lineage: &lineage, node, at: clock.rfc3339(clock.now()) };
        let rows = live_run.kept_files.rows(files, &origin);
        let stored = self.sessions.0.runs.store().file_changes().add(live_run.run.id.clone(), rows.clone());
        Box::pin(async move {
            // waits: for the database, raced at `Point::FileBackup`.
            stored.await.map_err(|error| error.to_string())?;
            live_run.kept_files.mark_stored(&rows);
            Ok(())
        })
    }
}

impl RunControl for SessionRunControl<'_> {
    fn set_phase(&self, phase: RunPhase) {
        self.sessions.0.runs.set_phase(self.live_run, phase);
    }

    fn apply_pending_messages(&self) {
        let (writer, session) = (self.live_run.writer(), &self.live_run.run.session);
        let mut news = self.sessions.take_news(session);
        while let Some(text) = news.first().cloned() {
            if writer.add_user_message(text, writer.clock().now()).is_err() {
                // The run was forced at this moment: the next run reads the news.
                return self.sessions.restore_news(session, news);
            }
            news.remove(0);
        }
        self.sessions.0.runs.take_steering_messages(self.live_run);
    }

    fn usage_today(&self) -> Usage {
        self.sessions.0.runs.spent_today(&self.live_run.run.agent).usage
    }

    fn is_key_spent(&self) -> bool {
        self.sessions.0.runs.is_daily_cost_reached(&self.live_run.run.principal, &self.live_run.key)
    }

    fn abort_over_budget(&self, reason: StopReason) {
        self.sessions.0.runs.abort_runs(vec![self.live_run.run.id.clone()], StopLevel::Gentle, &reason);
    }

    fn create_schedule(&self, request: ScheduleRequest) -> BoxFuture<'_, Result<ScheduleView, ScheduleChangeError>> {
        let runs = &self.sessions.0.runs;
        let schedules = runs.services().schedules.clone();
        let new = schedules.begin_creation(self.schedule_creator(), request);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        match new {
            // A stop that came before has not seen it.
            Ok(_) if self.live_run.scope.is_cancelled() => drop(sender.send(Err(StoreError::Closed.into()))),
            Ok(new) => runs.spawn(async move { drop(sender.send(schedules.store_new(new).await)) }),
            Err(error) => drop(sender.send(Err(error))),
        }
        receiver.map(|created| created.unwrap_or(Err(StoreError::Closed.into()))).boxed()
    }

    fn start_sub_run(&self, request: SubRunRequest) -> BoxFuture<'_, Result<Arc<LiveRun>, String>> {
        self.admit_sub_run(request).boxed()
    }
}

impl SessionRunControl<'_> {
    fn schedule_creator(&self) -> ScheduleCreator {
        let run = &self.live_run.run;
        let chat = self.live_run.channel_origin.as_ref().map(|origin| {
            let message = origin.message();
            ScheduleDelivery { channel: message.channel.clone(), to: message.reply_target.clone() }
        });
        ScheduleCreator {
            principal: run.principal.clone(),
            scope: if run.admin { AccessLevel::Admin } else { AccessLevel::Write },
            surface: run.surface,
            run: Some((run.id.clone(), run.session.clone())),
            chat,
        }
    }

    /// Once the registry has accepted the sub-run, a stop of this run covers it, and this run's ledger holds it.
    async fn admit_sub_run(&self, request: SubRunRequest) -> Result<Arc<LiveRun>, String> {
        let (sessions, parent) = (self.sessions, &self.live_run.run);
        let agent = request.agent.clone();
        let session = self.sub_run_session(&request)?;
        let claim = self.claim_sub_run_session(&session)?;
        let child = sessions.new_live_run(RunRequest {
            id: None,
            session,
            agent: request.agent,
            principal: parent.principal.clone(),
            key: self.live_run.key.clone(),
            admin: parent.admin,
            surface: parent.surface,
            parent: Some(parent.id.clone()),
            text: request.text,
            work: RunWork::default(),
            on_busy: OnBusy::Queue,
            timeout: None,
            fingerprint: String::new(),
            channel_origin: None,
            max_permissions: Some(request.max_permissions),
        });
        child.set_parent(self.live_run);
        sessions.0.runs.accept(&child).map_err(|refusal| refusal.to_string())?;
        let held = self.live_run.scope.hold(ResourceKind::Run, format!("{agent} ({})", child.run.id));
        if request.waits_for_end {
            self.live_run.scope.spawn(hold_until_ended(held, Arc::clone(&child)));
        } else {
            sessions.expect_news(&parent.session);
            let deliver_news =
                deliver_news_at_end(sessions.clone(), RunAncestry::of(sessions, self.live_run), Arc::clone(&child));
            // It may outlive this run, so it is not a task of this run's scope.
            sessions.0.runs.spawn(hold_until_ended(held.as_background(), Arc::clone(&child)));
            sessions.0.runs.spawn(deliver_news);
        }
        sessions
            .commit_acceptance(&child, claim)
            .await
            .map_err(|error| format!("the sub-run could not be stored: {error}"))?;
        Ok(child)
    }

    /// A conversation with another agent has a key that anybody could have used before. It must belong to those who
    /// take part in this session, so that nobody else reads it. The people of a chat use each other's conversations, and
    /// none that belongs to the holder of a token.
    fn claim_sub_run_session(&self, key: &SessionKey) -> Result<SessionClaim, String> {
        let (owners, parent) = (self.sessions.owners(), &self.live_run.run);
        let claim = owners.claim(key, &parent.principal);
        let parent_owner = owners.find(&parent.session);
        let found_owner = claim.found().and_then(|session| session.owner.as_ref());
        let is_open = parent.surface == Surface::Channel && !found_owner.is_some_and(is_named_token)
            || parent_owner.as_ref().is_some_and(|session| session.sharing == Sharing::Shared);
        let takes_part = |owner: &Principal| {
            *owner == parent.principal
                || parent_owner.as_ref().and_then(|session| session.owner.as_ref()) == Some(owner)
        };
        let is_own = claim.found().is_none_or(|session| session.owner.as_ref().is_some_and(takes_part));
        if is_own || is_open {
            return Ok(claim);
        }
        Err(format!("the session {key} of this conversation belongs to somebody else"))
    }

    fn sub_run_session(&self, request: &SubRunRequest) -> Result<SessionKey, String> {
        let (agent, parent_session) = (&request.agent, &self.live_run.run.session);
        let key = match request.session {
            SubRunSession::New => format!("{}{}", one_off_session_prefix(agent), uuid::Uuid::now_v7()),
            SubRunSession::Conversation => format!("agent:{agent}:from:{parent_session}"),
        };
        SessionKey::parse(key).map_err(|error| format!("no session key can be made for the conversation: {error}"))
    }
}

async fn hold_until_ended(held: Held, child: Arc<LiveRun>) {
    child.wait_for_progress(RunProgress::Ended).await;
    let receipt = child.receipt();
    let rung = receipt.as_ref().map_or(Rung::None, |receipt| receipt.rung);
    for leftover in receipt.into_iter().flat_map(|receipt| receipt.leftovers) {
        held.note_leftover(leftover.name);
    }
    held.release(match (rung, child.verdict()) {
        (Rung::Term, _) => Release::Term,
        (Rung::Kill | Rung::Abandoned, _) => Release::Kill,
        (Rung::None | Rung::Cancel, Some(Verdict::Completed)) => Release::Finished,
        (Rung::None | Rung::Cancel, Some(Verdict::Failed { .. })) => Release::Failed,
        (Rung::None | Rung::Cancel, Some(Verdict::Aborted { .. }) | None) => Release::Cancelled,
    });
}

/// A run, its parent, and so on up to the run that a transport submitted. Collected while the run is active, so that
/// none of them is forgotten.
pub(super) struct RunAncestry(Vec<Arc<LiveRun>>);

impl RunAncestry {
    pub(super) fn of(sessions: &Sessions, live_run: &Arc<LiveRun>) -> Self {
        let parent = |live_run: &Arc<LiveRun>| sessions.0.runs.live_run(live_run.run.parent.as_ref()?);
        Self(std::iter::successors(Some(Arc::clone(live_run)), parent).collect())
    }

    /// The nearest ancestor session that will run again. That is the session of the nearest run that is active, or that
    /// does not have a one-off session.
    pub(super) fn news_recipient(&self) -> Option<&SessionKey> {
        let will_be_read =
            |live_run: &&Arc<LiveRun>| !has_one_off_session(live_run) || live_run.progress() < RunProgress::Ended;
        self.0.iter().find(will_be_read).or(self.0.last()).map(|live_run| &live_run.run.session)
    }
}

/// True if the run has a one-off session, to which nobody writes again: that of a new sub-agent.
fn has_one_off_session(live_run: &LiveRun) -> bool {
    let run = &live_run.run;
    run.parent.is_some() && run.session.as_str().strip_prefix(&one_off_session_prefix(&run.agent)).is_some()
}

fn one_off_session_prefix(agent: &AgentId) -> String {
    format!("agent:{agent}:run:")
}

/// Makes the end of a background run news for the session that started it. The news starts no run: the next step of an
/// active run reads it, or the next run.
async fn deliver_news_at_end(sessions: Sessions, ancestry: RunAncestry, child: Arc<LiveRun>) {
    child.wait_for_progress(RunProgress::Ended).await;
    if let Some(own) = ancestry.0.first() {
        sessions.expect_one_less_news(&own.run.session);
    }
    if child.verdict().is_some() {
        let limit = sessions.0.runs.services().limits.tool_output_bytes;
        sessions.add_news(&ancestry, vec![format_news(&child, limit)]);
    }
}

/// Passes the unread news of an ended run up to [`RunAncestry::news_recipient`], if its own session will not run again.
pub(super) fn pass_unread_news_up(sessions: &Sessions, ancestry: &RunAncestry) {
    if let Some(own) = ancestry.0.first().filter(|own| has_one_off_session(own)) {
        let unread = sessions.take_news(&own.run.session);
        sessions.add_news(ancestry, unread);
    }
}

fn format_news(child: &LiveRun, max_bytes: usize) -> String {
    let (agent, run) = (&child.run.agent, &child.run.id);
    let report = ToolOutput::ok(sub_run_report(child)).truncated(max_bytes).text;
    match child.verdict() {
        Some(Verdict::Completed) => {
            format!("{BACKGROUND_NEWS_PREFIX}agent {agent}, run {run}, has answered:]\n{report}")
        }
        _ => format!("{BACKGROUND_NEWS_PREFIX}run {run} is over. {report}]"),
    }
}
