//! One round of one session: a scene, a stop at a random moment, and what must be true afterwards.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quell_testkit::commands::Marker;
use quell_testkit::daemon::EventLog;
use serde_json::{Value, json};

use crate::chance::Chance;
use crate::marks::Gone;
use crate::plan::{Dialect, Plan, Surface};
use crate::scenes::{Beside, Message, Stage, may_fail_at_once};
use crate::script::Order;
use crate::site::{Site, settled};
use crate::strikes::{Target, strike};
use crate::tally::{Fault, verdict_word};

/// How long a marked process may be found after the end that says that it is gone.
const SURVIVAL: Duration = Duration::from_secs(2);

/// A round, drawn and ready.
pub(crate) struct Round {
    site: Arc<Site>,
    plan: Plan,
    session: String,
    name: String,
    /// The dialect in which the message after the stop is answered.
    next: Dialect,
    /// Which of several runs the stop is for.
    aim: u64,
}

impl Round {
    pub(crate) fn draw(site: &Arc<Site>, session: usize, nth: u64, chance: &mut Chance) -> Self {
        let plan = Plan::draw(chance);
        let (next, aim) = (chance.pick(&Dialect::ALL), chance.next());
        Self {
            site: Arc::clone(site),
            plan,
            session: format!("soak-{session}"),
            name: format!("r{session}-{nth}"),
            next,
            aim,
        }
    }

    /// What it is, for reports.
    pub(crate) fn title(&self) -> String {
        let Plan { scene, surface, moment, lasting, forced, doubled, .. } = &self.plan;
        let (scene, surface) = (scene.name(), surface.name());
        format!(
            "{}: {scene} x {surface} after {moment:?}, lasting {lasting}, forced {forced}, doubled {doubled}",
            self.name
        )
    }

    pub(crate) async fn play(self) {
        let mut stage = Stage::of(&self.plan, &self.name);
        let markers: Vec<String> = stage.scripts.iter().map(|(marker, _)| marker.clone()).collect();
        self.site.model.order(Order::Script(std::mem::take(&mut stage.scripts).into_iter().collect())).await;
        if let Some(before) = &stage.before
            && let Some(run) = self.send(before).await
        {
            self.judge(&self.follow(&run).await, Expected::Completed);
        }
        let mut runs = Vec::new();
        for message in &stage.messages {
            runs.extend(self.send(message).await);
        }
        let (logs, named, more) = tokio::join!(
            join_all(runs.iter().map(|run| self.follow(run))),
            self.stop(&runs),
            self.beside(stage.beside, &runs)
        );
        for log in &logs {
            self.judge(log, self.expected(log, &named));
        }
        if let Some(message) = more {
            self.steered_or_not(&message).await;
        }
        let completed = logs.iter().any(|log| last(log, "/verdict/kind") == "completed");
        if Stage::leaves(&self.plan) && completed {
            self.tidy().await;
        }
        for mark in stage.marks {
            self.nobody_carries(mark).await;
        }
        self.next_message_works().await;
        self.site.model.order(Order::Forget(markers)).await;
        if self.plan.reset {
            let answer = self.site.http.post(&format!("/api/sessions/{}/reset", self.session), &json!({})).await;
            self.site.expect(&answer, 200, &self.session);
        }
        self.site.tally.facts().rounds += 1;
    }

    /// A message that its run did not take before its end is a run of its own.
    async fn steered_or_not(&self, message: &str) {
        let view = self.site.http.get(&format!("/api/runs/{message}")).await.expect_status(200);
        if view["state"] == "steered" {
            return;
        }
        if self.plan.lasting {
            self.tidy().await;
        }
        self.judge(&self.follow(message).await, Expected::Any);
    }

    /// Sends a message; answers its id, which is that of its run unless another one takes it.
    async fn send(&self, message: &Message) -> Option<String> {
        let path = format!("/api/sessions/{}/runs", self.session);
        let answer = self.site.http.post(&path, &message.body).await;
        let body = self.site.expect(&answer, 202, &message.run);
        self.site.tally.facts().sent += 1;
        body["messageId"].as_str().or(body["runId"].as_str()).map(str::to_owned)
    }

    /// Reads a run's events to their end; somebody else may leave in the middle.
    async fn follow(&self, run: &str) -> EventLog {
        let events = self.site.http.events(run, 0).await;
        if self.plan.deserted {
            let stray = self.site.http.events(run, 0).await;
            let read = tokio::time::timeout(self.plan.moment / 2, stray.to_end());
            let (log, _) = tokio::join!(events.to_end(), read);
            return log;
        }
        events.to_end().await
    }

    /// The stop of the plan at its moment; answers the runs that it named. What it was not for is stopped after it.
    async fn stop(&self, runs: &[String]) -> Vec<String> {
        let site = &self.site;
        site.tally.asked(&self.plan);
        if matches!(self.plan.surface, Surface::Nobody | Surface::TimeOut) || runs.is_empty() {
            return Vec::new();
        }
        tokio::time::sleep(self.plan.moment).await;
        let aim = usize::try_from(self.aim % runs.len() as u64).unwrap_or(0);
        let role = match self.plan.scene {
            crate::plan::Scene::Approval => "asking",
            crate::plan::Scene::Mcp => "tools",
            crate::plan::Scene::Compaction => "small",
            _ => "main",
        };
        let target = Target { session: self.session.clone(), run: runs[aim].clone(), agent: self.plan.agent(role) };
        let named = strike(site, &self.plan, &target).await;
        site.tally.name(&named);
        if self.plan.surface == Surface::Dropped {
            site.tally.facts().maybe.insert(target.run);
        }
        if runs.iter().any(|run| named.contains(run)) {
            site.tally.facts().struck += 1;
        }
        if self.plan.lasting && !runs.iter().all(|run| named.contains(run)) {
            self.tidy().await;
        }
        named
    }

    /// Ends whatever the session still has.
    async fn tidy(&self) {
        let more = self.site.stop_session(&self.session).await;
        self.site.tally.name(&more);
        self.site.tally.facts().tidied += 1;
    }

    /// What somebody else does meanwhile; answers the message that came of it.
    async fn beside(&self, beside: Beside, runs: &[String]) -> Option<String> {
        let run = runs.first()?;
        match beside {
            Beside::Nothing => None,
            Beside::Steer => {
                let text = format!("and mind the gap marker:{run}");
                let body = json!({"text": text, "agent": self.plan.agent("main"), "onBusy": "steer"});
                self.send(&Message { run: run.clone(), body }).await
            }
            Beside::Answer(decision) => {
                self.answer_approval(run, decision).await;
                None
            }
        }
    }

    /// Answers the approval of the run, if it comes to that before its end.
    async fn answer_approval(&self, run: &str, decision: &str) {
        let site = &self.site;
        let answered = settled(Duration::from_secs(20), || async move {
            let list = site.http.get("/api/approvals").await;
            let rows = list.body["items"].as_array().cloned().unwrap_or_default();
            if let Some(id) = rows.iter().find(|row| row["runId"] == run).and_then(|row| row["id"].as_str()) {
                let answer = site.http.post(&format!("/api/approvals/{id}"), &json!({"decision": decision})).await;
                // A stop may have come between the look and the answer.
                return if matches!(answer.status, 200 | 404 | 409) { Ok(()) } else { Err(format!("{answer:?}")) };
            }
            let view = site.http.get(&format!("/api/runs/{run}")).await.body;
            if view["state"] == "ended" { Ok(()) } else { Err("no approval and no end".to_owned()) }
        });
        if let Err(why) = answered.await {
            site.tally.fault(Fault::Answer, run, format!("the approval could not be answered: {why}"));
        }
    }

    fn expected(&self, log: &EventLog, named: &[String]) -> Expected {
        let run = log.events.last().and_then(|event| event.data["runId"].as_str()).unwrap_or_default();
        let by_plan = self.plan.lasting || named.iter().any(|name| name == run);
        let superseded = self.plan.scene == crate::plan::Scene::Interrupt;
        match (by_plan, self.plan.surface) {
            (true, _) if may_fail_at_once(&self.plan) => Expected::Any,
            (true, _) => Expected::Aborted,
            (false, Surface::TimeOut | Surface::Dropped) => Expected::Any,
            (false, _) if superseded => Expected::Any,
            (false, _) => Expected::Completed,
        }
    }

    fn judge(&self, log: &EventLog, expected: Expected) {
        let tally = &self.site.tally;
        let run = log.events.last().and_then(|event| event.data["runId"].as_str()).unwrap_or(&self.name).to_owned();
        let ends = log.of("run.ended").len();
        if ends != 1 {
            tally.fault(
                if ends == 0 { Fault::MissingEnd } else { Fault::DoubleEnd },
                &run,
                format!("{:#?}", log.kinds()),
            );
            return;
        }
        for fault in log.faults() {
            tally.fault(Fault::Events, &run, format!("{fault}; {}\n{:?}", self.title(), log.kinds()));
        }
        let end = log.events.last().map_or(&Value::Null, |event| &event.data);
        let kind = last(log, "/verdict/kind");
        let fits = match expected {
            Expected::Any => kind == "aborted" || kind == "completed",
            Expected::Aborted => kind == "aborted",
            // Somebody else's wide stop may have met it: the audit asks whose.
            Expected::Completed => kind == "completed" || kind == "aborted",
        };
        if !fits {
            tally.fault(Fault::Verdict, &run, format!("{}; {}\n{end}", verdict_word(end), self.title()));
        }
    }

    async fn nobody_carries(&self, mark: Marker) {
        let gone = self.site.marks.gone(&mark, SURVIVAL).await;
        let tally = &self.site.tally;
        tally.facts().looks += 1;
        match gone {
            Gone::AtOnce => mark.retire(),
            Gone::After(took, who) => {
                tally.facts().late.add(took);
                eprintln!("late by {took:?}: {}: {who:?}", self.title());
                mark.retire();
            }
            // The marker kills them, so that one fault is one fault.
            Gone::Never(who) => tally.fault(Fault::Process, &self.name, format!("{}\n{who:#?}", self.title())),
        }
    }

    async fn next_message_works(&self) {
        let run = format!("{}-next", self.name);
        let body =
            json!({"text": format!("and now? marker:{run}"), "agent": self.next.agent("main"), "idempotencyKey": run});
        if let Some(run) = self.send(&Message { run, body }).await {
            self.judge(&self.follow(&run).await, Expected::Completed);
        }
    }
}

/// Which verdict a run must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Completed,
    Aborted,
    Any,
}

fn last<'a>(log: &'a EventLog, path: &str) -> &'a str {
    log.events.last().and_then(|event| event.data.pointer(path)?.as_str()).unwrap_or_default()
}
