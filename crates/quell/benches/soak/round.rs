//! One round: a scene, a stop at a random time, the checks afterwards.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use quell_testkit::commands::ProcessMarker;
use quell_testkit::daemon::TestRunEventLog;
use serde_json::{Value, json};

use crate::fixture::{SoakFixture, poll_until};
use crate::plan::{RoundPlan, SoakDialect, StopMethod};
use crate::results::{FaultKind, verdict_text};
use crate::scenes::{ConcurrentAction, PreparedScene, SoakMessage, may_fail_at_once};
use crate::stop_requests::{StopTarget, stop_as_planned};

/// How long a marked process may be found after the end of its run.
const PROCESS_EXIT_LIMIT: Duration = Duration::from_secs(2);

pub(crate) struct SoakRound {
    fixture: Arc<SoakFixture>,
    plan: RoundPlan,
    session: String,
    name: String,
    /// The dialect of the message after the stop.
    next_dialect: SoakDialect,
    /// Random number that selects one of several runs for the stop.
    target_choice: u64,
}

impl SoakRound {
    pub(crate) fn draw(fixture: &Arc<SoakFixture>, session: usize, nth: u64, random: &mut Rng) -> Self {
        let plan = RoundPlan::draw(random);
        let (next_dialect, target_choice) = (SoakDialect::draw(random), random.u64(..));
        Self {
            fixture: Arc::clone(fixture),
            plan,
            session: format!("soak-{session}"),
            name: format!("r{session}-{nth}"),
            next_dialect,
            target_choice,
        }
    }

    /// Describes the round for reports.
    pub(crate) fn title(&self) -> String {
        let RoundPlan { scene, stop_method, stop_delay, needs_stop, forced, stop_twice, .. } = &self.plan;
        let (scene, stop_method) = (scene.name(), stop_method.name());
        format!(
            "{}: {scene} x {stop_method} after {stop_delay:?}, needs a stop {needs_stop}, forced {forced}, doubled {stop_twice}",
            self.name
        )
    }

    pub(crate) async fn run(self) {
        let mut prepared = PreparedScene::prepare(&self.plan, &self.name);
        let markers: Vec<String> = prepared.scripts.iter().map(|(marker, _)| marker.clone()).collect();
        self.fixture.model.script(std::mem::take(&mut prepared.scripts));
        if let Some(before) = &prepared.before
            && let Some(run) = self.send_message(before).await
        {
            self.check_log(&self.read_events(&run).await, ExpectedVerdict::Completed);
        }
        let mut runs = Vec::new();
        for message in &prepared.messages {
            runs.extend(self.send_message(message).await);
        }
        let (logs, named, more) = tokio::join!(
            join_all(runs.iter().map(|run| self.read_events(run))),
            self.request_stop(&runs),
            self.act_beside(prepared.concurrent_action, &runs)
        );
        for log in &logs {
            self.check_log(log, self.expected_verdict(log, &named));
        }
        if let Some(message) = more {
            self.check_steered_message(&message).await;
        }
        let completed = logs.iter().any(|log| last_event_text(log, "/verdict/kind") == "completed");
        if PreparedScene::may_leave_work(&self.plan) && completed {
            self.stop_leftovers().await;
        }
        for mark in prepared.markers {
            self.check_processes_gone(mark).await;
        }
        self.check_next_message().await;
        self.fixture.model.forget(&markers);
        if self.plan.reset {
            let answer = self.fixture.http().post(&format!("/api/sessions/{}/reset", self.session), &json!({})).await;
            self.fixture.expect_status(&answer, 200, &self.session);
        }
        self.fixture.results.lock().rounds += 1;
    }

    /// Checks a steered message. If its run ended before taking it, it became a run of its own.
    async fn check_steered_message(&self, message: &str) {
        let view = self.fixture.http().get(&format!("/api/runs/{message}")).await.expect_status(200);
        if view["state"] == "steered" {
            return;
        }
        if self.plan.needs_stop {
            self.stop_leftovers().await;
        }
        self.check_log(&self.read_events(message).await, ExpectedVerdict::Any);
    }

    /// Sends a message. Returns its id, which is also the id of its run unless another run takes it.
    async fn send_message(&self, message: &SoakMessage) -> Option<String> {
        let path = format!("/api/sessions/{}/runs", self.session);
        let answer = self.fixture.http().post(&path, &message.body).await;
        // A node sends a message again to another one if the answer was lost; then it was accepted already.
        let is_repeated = answer.status == 200 && self.fixture.daemons.len() > 1;
        let body = self.fixture.expect_status(&answer, if is_repeated { 200 } else { 202 }, &message.run);
        self.fixture.results.lock().sent_runs += 1;
        body["messageId"].as_str().or(body["runId"].as_str()).map(str::to_owned)
    }

    /// Reads a run's events to their end. Another reader may disconnect in the middle.
    async fn read_events(&self, run: &str) -> TestRunEventLog {
        let events = self.fixture.http().run_events(run, 0).await;
        if self.plan.reader_leaves {
            let leaving_reader = self.fixture.http().run_events(run, 0).await;
            let read = tokio::time::timeout(self.plan.stop_delay / 2, leaving_reader.read_to_end());
            let (log, _) = tokio::join!(events.read_to_end(), read);
            return log;
        }
        events.read_to_end().await
    }

    /// Sends the planned stop at its time. Returns the runs that it named. Then stops the runs that it did not reach.
    async fn request_stop(&self, runs: &[String]) -> Vec<String> {
        let fixture = &self.fixture;
        fixture.results.count_stop(&self.plan);
        if matches!(self.plan.stop_method, StopMethod::NoStop | StopMethod::TimeOut) || runs.is_empty() {
            return Vec::new();
        }
        tokio::time::sleep(self.plan.stop_delay).await;
        let index = usize::try_from(self.target_choice % runs.len() as u64).unwrap_or(0);
        let role = match self.plan.scene {
            crate::plan::SoakScene::Approval => "asking",
            crate::plan::SoakScene::Mcp => "tools",
            crate::plan::SoakScene::Compaction => "small",
            _ => "main",
        };
        let target = StopTarget {
            session: self.session.clone(),
            run: runs[index].clone(),
            agent: self.plan.dialect.agent_id(role),
        };
        let named = stop_as_planned(fixture, &self.plan, &target).await;
        fixture.results.add_named_runs(&named);
        if self.plan.stop_method == StopMethod::CallerDropped {
            fixture.results.lock().maybe_stopped.insert(target.run);
        }
        if runs.iter().any(|run| named.contains(run)) {
            fixture.results.lock().effective_stops += 1;
        }
        if self.plan.needs_stop && !runs.iter().all(|run| named.contains(run)) {
            self.stop_leftovers().await;
        }
        named
    }

    /// Stops everything that is left in the session.
    async fn stop_leftovers(&self) {
        let more = self.fixture.stop_session(&self.session).await;
        self.fixture.results.add_named_runs(&more);
        self.fixture.results.lock().cleanup_stops += 1;
    }

    /// Does the planned action at the same time as the stop. Returns the message that it sent, if any.
    async fn act_beside(&self, action: ConcurrentAction, runs: &[String]) -> Option<String> {
        let run = runs.first()?;
        match action {
            ConcurrentAction::Nothing => None,
            ConcurrentAction::Steer => {
                let text = format!("and mind the gap marker:{run}");
                let body = json!({"text": text, "agent": self.plan.dialect.agent_id("main"), "onBusy": "steer"});
                self.send_message(&SoakMessage { run: run.clone(), body }).await
            }
            ConcurrentAction::Answer(decision) => {
                self.answer_approval(run, decision).await;
                None
            }
        }
    }

    /// Answers the approval of the run, if the run asks for one before its end.
    async fn answer_approval(&self, run: &str, decision: &str) {
        let fixture = &self.fixture;
        let answered = poll_until(Duration::from_secs(20), || async move {
            let list = fixture.http().get("/api/approvals").await;
            let rows = list.body["items"].as_array().cloned().unwrap_or_default();
            if let Some(id) = rows.iter().find(|row| row["runId"] == run).and_then(|row| row["id"].as_str()) {
                let answer = fixture.http().post(&format!("/api/approvals/{id}"), &json!({"decision": decision})).await;
                // A stop may have come between the query and the answer.
                return if matches!(answer.status, 200 | 404 | 409) { Ok(()) } else { Err(format!("{answer:?}")) };
            }
            let view = fixture.http().get(&format!("/api/runs/{run}")).await.body;
            if view["state"] == "ended" { Ok(()) } else { Err("no approval and no end".to_owned()) }
        });
        if let Err(why) = answered.await {
            fixture.results.add_fault(
                FaultKind::UnexpectedAnswer,
                run,
                format!("the approval could not be answered: {why}"),
            );
        }
    }

    fn expected_verdict(&self, log: &TestRunEventLog, named: &[String]) -> ExpectedVerdict {
        let run = log.events.last().and_then(|event| event.data["runId"].as_str()).unwrap_or_default();
        let by_plan = self.plan.needs_stop || named.iter().any(|name| name == run);
        let superseded = self.plan.scene == crate::plan::SoakScene::Interrupt;
        match (by_plan, self.plan.stop_method) {
            (true, _) if may_fail_at_once(&self.plan) => ExpectedVerdict::Any,
            (true, _) => ExpectedVerdict::Aborted,
            (false, StopMethod::TimeOut | StopMethod::CallerDropped) => ExpectedVerdict::Any,
            (false, _) if superseded => ExpectedVerdict::Any,
            (false, _) => ExpectedVerdict::Completed,
        }
    }

    fn check_log(&self, log: &TestRunEventLog, expected: ExpectedVerdict) {
        let results = &self.fixture.results;
        let run = log.events.last().and_then(|event| event.data["runId"].as_str()).unwrap_or(&self.name).to_owned();
        let ends = log.of_kind("run.ended").len();
        if ends != 1 {
            results.add_fault(
                if ends == 0 { FaultKind::MissingEnd } else { FaultKind::DoubleEnd },
                &run,
                format!("{:#?}", log.kinds()),
            );
            return;
        }
        for fault in log.violations() {
            results.add_fault(FaultKind::EventOrder, &run, format!("{fault}; {}\n{:?}", self.title(), log.kinds()));
        }
        let end = log.events.last().map_or(&Value::Null, |event| &event.data);
        let kind = last_event_text(log, "/verdict/kind");
        let fits = match expected {
            ExpectedVerdict::Any => kind == "aborted" || kind == "completed",
            ExpectedVerdict::Aborted => kind == "aborted",
            // A stop of everything by another session may have hit it: the audit checks that.
            ExpectedVerdict::Completed => kind == "completed" || kind == "aborted",
        };
        if !fits {
            results.add_fault(FaultKind::Verdict, &run, format!("{}; {}\n{end}", verdict_text(end), self.title()));
        }
    }

    async fn check_processes_gone(&self, mark: ProcessMarker) {
        let gone = self.fixture.markers.wait_until_gone(&mark, PROCESS_EXIT_LIMIT).await;
        let results = &self.fixture.results;
        results.lock().marker_checks += 1;
        match gone {
            Ok((late, took)) => {
                mark.disarm();
                if !late.is_empty() {
                    results.lock().late_exits.add(took);
                    eprintln!("late by {took:?}: {}: {late:?}", self.title());
                }
            }
            // The marker kills them when it is dropped, so that one leak is one fault.
            Err(left) => results.add_fault(FaultKind::Process, &self.name, format!("{}\n{left:#?}", self.title())),
        }
    }

    async fn check_next_message(&self) {
        let run = format!("{}-next", self.name);
        let body = json!({"text": format!("and now? marker:{run}"), "agent": self.next_dialect.agent_id("main"), "idempotencyKey": run});
        if let Some(run) = self.send_message(&SoakMessage { run, body }).await {
            self.check_log(&self.read_events(&run).await, ExpectedVerdict::Completed);
        }
    }
}

/// The verdict that a run must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedVerdict {
    Completed,
    Aborted,
    Any,
}

fn last_event_text<'a>(log: &'a TestRunEventLog, path: &str) -> &'a str {
    log.events.last().and_then(|event| event.data.pointer(path)?.as_str()).unwrap_or_default()
}
