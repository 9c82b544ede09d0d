//! What the agent loop tells and asks the run that it works for: its phase, its budget, messages on the way, sub-runs.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_kernel::Push;
use quell_kernel::registry::Phase;
use quell_kernel::turn::NEWS;
use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, ResourceKind, Rung, SessionKey, StopReason, Usage, Verdict};

use super::Sessions;
use super::admit::Wanted;
use crate::agent::{Child, ChildOrder, ChildPlace, Reins, report_of};
use crate::cell::{Cell, Progress};
use crate::scope::Held;
use crate::tools::ToolOutput;

/// The reins of one run.
pub(super) struct RunReins<'a> {
    pub(super) sessions: &'a Sessions,
    pub(super) cell: &'a Arc<Cell>,
}

impl Reins for RunReins<'_> {
    fn phase(&self, phase: Phase) {
        self.sessions.0.runs.phase(self.cell, phase);
    }

    fn take_messages(&self) {
        let (pen, session) = (self.cell.pen(), &self.cell.run.session);
        let mut news = self.sessions.take_news(session);
        while let Some(text) = news.first().cloned() {
            if pen.add_user(text, pen.clock().now()).is_err() {
                // Forced in this very moment: the next run reads them.
                return self.sessions.give_back_news(session, news);
            }
            news.remove(0);
        }
        self.sessions.0.runs.take_steers(self.cell);
    }

    fn spent_today(&self) -> Usage {
        self.sessions.0.runs.spent(&self.cell.run.agent).usage
    }

    fn out_of_budget(&self, reason: StopReason) {
        self.sessions.0.runs.abort(vec![self.cell.run.id.clone()], Push::Gentle, &reason);
    }

    fn start_child(&self, order: ChildOrder) -> BoxFuture<'_, Result<Child, String>> {
        self.start(order).boxed()
    }
}

impl RunReins<'_> {
    /// From the moment at which the registry has taken the child, a stop of this run covers it, and this run's ledger holds it.
    async fn start(&self, order: ChildOrder) -> Result<Child, String> {
        let (sessions, own) = (self.sessions, &self.cell.run);
        let agent = order.agent.clone();
        let child = sessions.new_cell(Wanted {
            id: None,
            session: self.session_of(&order)?,
            agent: order.agent,
            principal: own.principal.clone(),
            admin: own.admin,
            surface: own.surface,
            parent: Some(own.id.clone()),
            text: order.text,
            on_busy: OnBusy::Queue,
            time: None,
            fingerprint: String::new(),
            errand: None,
            ceiling: Some(order.ceiling),
        });
        sessions.0.runs.accept(&child).map_err(|refusal| refusal.to_string())?;
        let held = self.cell.scope.hold(ResourceKind::Run, format!("{agent} ({})", child.run.id));
        if order.waits {
            self.cell.scope.spawn(hold_until_ended(held, Arc::clone(&child)));
        } else {
            sessions.expect_news(&own.session);
            let news = tell_session(sessions.clone(), Lineage::of(sessions, self.cell), Arc::clone(&child));
            // It may outlive this run, so it is no task of its scope.
            sessions.0.runs.spawn(hold_until_ended(held.in_background(), Arc::clone(&child)));
            sessions.0.runs.spawn(news);
        }
        sessions.make_durable(&child).await.map_err(|error| format!("the sub-run could not be stored: {error}"))?;
        Ok(Child { cell: child })
    }

    fn session_of(&self, order: &ChildOrder) -> Result<SessionKey, String> {
        let (agent, own) = (&order.agent, &self.cell.run.session);
        let key = match order.place {
            ChildPlace::Fresh => format!("{}{}", fresh_session(agent), uuid::Uuid::now_v7()),
            ChildPlace::Conversation => format!("agent:{agent}:from:{own}"),
        };
        SessionKey::parse(key).map_err(|error| format!("no session key can be made for the conversation: {error}"))
    }
}

async fn hold_until_ended(held: Held, child: Arc<Cell>) {
    child.reached(Progress::Ended).await;
    let receipt = child.receipt();
    let rung = receipt.as_ref().map_or(Rung::None, |receipt| receipt.rung);
    for leftover in receipt.into_iter().flat_map(|receipt| receipt.leftovers) {
        held.note_leftover(leftover.name);
    }
    held.release(match (rung, child.verdict()) {
        (Rung::Term, _) => "term",
        (Rung::Kill | Rung::Abandoned, _) => "kill",
        (Rung::None | Rung::Cancel, Some(Verdict::Completed)) => "finished",
        (Rung::None | Rung::Cancel, Some(Verdict::Failed { .. })) => "failed",
        (Rung::None | Rung::Cancel, Some(Verdict::Aborted { .. }) | None) => "cancelled",
    });
}

/// A run, its parent, and so on to the one that a door let in. Taken while the run is at work, so that none is forgotten.
pub(super) struct Lineage(Vec<Arc<Cell>>);

impl Lineage {
    pub(super) fn of(sessions: &Sessions, cell: &Arc<Cell>) -> Self {
        let parent = |cell: &Arc<Cell>| sessions.0.runs.cell(cell.run.parent.as_ref()?);
        Self(std::iter::successors(Some(Arc::clone(cell)), parent).collect())
    }

    /// Whose session will be read again: that of the nearest run that is at work, or is not the only one of its session.
    pub(super) fn heir(&self) -> Option<&SessionKey> {
        let has_a_future = |cell: &&Arc<Cell>| !is_one_off(cell) || cell.progress() < Progress::Ended;
        self.0.iter().find(has_a_future).or(self.0.last()).map(|cell| &cell.run.session)
    }
}

/// True when the run has a session of its own that nobody writes to again: a fresh sub-agent's.
fn is_one_off(cell: &Cell) -> bool {
    let run = &cell.run;
    run.parent.is_some() && run.session.as_str().strip_prefix(&fresh_session(&run.agent)).is_some()
}

fn fresh_session(agent: &AgentId) -> String {
    format!("agent:{agent}:run:")
}

/// The end of a background run becomes news for the session that started it. It starts nothing there: the next step of a
/// run at work reads it, or the next message's run.
async fn tell_session(sessions: Sessions, lineage: Lineage, child: Arc<Cell>) {
    child.reached(Progress::Ended).await;
    if let Some(own) = lineage.0.first() {
        sessions.expect_no_news(&own.run.session);
    }
    if child.verdict().is_some() {
        let limit = sessions.0.runs.workshop().limits.tool_output_bytes;
        sessions.add_news(&lineage, vec![news(&child, limit)]);
    }
}

/// A run is over: what it had not read goes to who has a future, if its own session has none.
pub(super) fn hand_up_news(sessions: &Sessions, lineage: &Lineage) {
    if let Some(own) = lineage.0.first().filter(|own| is_one_off(own)) {
        let unread = sessions.take_news(&own.run.session);
        sessions.add_news(lineage, unread);
    }
}

fn news(child: &Cell, limit: usize) -> String {
    let (agent, run) = (&child.run.agent, &child.run.id);
    let report = ToolOutput::ok(report_of(child)).bounded(limit).text;
    match child.verdict() {
        Some(Verdict::Completed) => format!("{NEWS}agent {agent}, run {run}, has answered:]\n{report}"),
        _ => format!("{NEWS}run {run} is over. {report}]"),
    }
}
