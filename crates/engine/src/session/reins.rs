//! What the agent loop tells and asks the run that it works for: its phase, its budget, messages on the way, sub-runs.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_kernel::Push;
use quell_kernel::registry::Phase;
use quell_protocol::api::OnBusy;
use quell_protocol::{ResourceKind, Rung, SessionKey, StopReason, Verdict};

use super::Sessions;
use super::admit::Wanted;
use crate::agent::{Child, ChildOrder, ChildPlace, Reins, report_of};
use crate::cell::{Cell, Progress};
use crate::scope::Held;

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
            if pen.add_user(text).is_err() {
                // Forced in this very moment: the next run reads them.
                return self.sessions.give_back_news(session, news);
            }
            news.remove(0);
        }
        self.sessions.0.runs.take_steers(self.cell);
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
        });
        sessions.0.runs.accept(&child).map_err(|refusal| refusal.to_string())?;
        let held = self.cell.scope.hold(ResourceKind::Run, format!("{agent} ({})", child.run.id));
        if order.waits {
            self.cell.scope.spawn(hold_until_ended(held, Arc::clone(&child)));
        } else {
            sessions.expect_news(&own.session);
            let news = tell_session(sessions.clone(), own.session.clone(), Arc::clone(&child));
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
            ChildPlace::Fresh => format!("agent:{agent}:run:{}", uuid::Uuid::now_v7()),
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

/// The end of a background run becomes news for the session that started it. It starts nothing there: the next step of a
/// run at work reads it, or the next message's run.
async fn tell_session(sessions: Sessions, session: SessionKey, child: Arc<Cell>) {
    child.reached(Progress::Ended).await;
    sessions.add_news(&session, child.verdict().map(|_| news(&child)));
}

fn news(child: &Cell) -> String {
    let (agent, run, report) = (&child.run.agent, &child.run.id, report_of(child));
    match child.verdict() {
        Some(Verdict::Completed) => format!("[The background agent {agent}, run {run}, has answered:]\n{report}"),
        _ => format!("[The background run {run} is over. {report}]"),
    }
}
