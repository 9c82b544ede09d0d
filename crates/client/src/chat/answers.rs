//! What the daemon's answers change.

use quell_protocol::api::{HistoryMessage, List, RunView, StopAnswer};
use quell_protocol::session::SessionView;
use quell_protocol::{AgentId, RunId, SessionKey};

use super::act::STOP_TEXT;
use super::clock::Moment;
use super::effects::{Answer, Effect, Failure, FailureKind, Outcome, Pace, Page, Question};
use super::state::{Asked, Chat, Menu, PickList, Picker, Run, RunState, StopAsked};
use super::transcript::{Body, Tone};
use super::turn::{Below, BelowState, End};
use crate::link::Sent;

impl Chat {
    pub(super) fn answer(&mut self, answer: Answer) -> Vec<Effect> {
        let now = self.now;
        match answer {
            Answer::Sent { run, result } => self.sent(&run, result),
            Answer::SessionStopped { session, result } => self.session_stopped(&session, result),
            Answer::RunStopped { run, result } => self.run_stopped(&run, result.map(drop)),
            Answer::Session { key, result } => {
                self.polls.session.answered(now, Pace::Slow);
                self.heard(result, |chat, result| chat.session_seen(&key, result))
            }
            Answer::Run { run, result } => {
                self.polls.held.answered(now, Pace::Fast);
                self.polls.unsettled.answered(now, Pace::Round);
                self.heard(result, |chat, result| chat.run_seen(&run, result))
            }
            Answer::Active(result) => {
                self.polls.active.answered(now, Pace::Round);
                self.heard(result, |chat, result| result.map(|rows| chat.active_seen(rows)).unwrap_or_default())
            }
            Answer::Approvals(result) => {
                self.polls.approvals.answered(now, Pace::Slow);
                self.heard(result, |chat, result| {
                    result.into_iter().for_each(|rows| chat.approvals_seen(rows));
                    Vec::new()
                })
            }
            Answer::Answered { id, result } => self.heard(result, |chat, result| {
                chat.approvals.retain(|asked| asked.row.id != id);
                chat.complain(result)
            }),
            Answer::Hold { result, asked } => {
                self.polls.hold.answered(now, Pace::Slow);
                self.heard(result, |chat, result| chat.hold_seen(result, asked))
            }
            Answer::Agents(result) => self.heard(result, |chat, result| {
                result.into_iter().for_each(|rows| chat.agents = rows);
                Vec::new()
            }),
            Answer::Sessions(result) => self.heard(result, |chat, result| {
                if let (Some(Menu::Picker(Picker { list: PickList::Sessions(rows), .. })), Ok(seen)) =
                    (&mut chat.menu, result)
                {
                    *rows = Some(seen);
                }
                Vec::new()
            }),
            Answer::History { session, which, result } => {
                self.heard(result, |chat, result| chat.history_seen(&session, &which, result))
            }
            Answer::ModelSet { model, result } => self.heard(result, |chat, result| chat.model_set(&model, result)),
        }
    }

    /// Learns from any answer whether the daemon is there, then takes it.
    fn heard<T>(&mut self, result: Outcome<T>, take: impl FnOnce(&mut Self, Outcome<T>) -> Vec<Effect>) -> Vec<Effect> {
        let mut effects = match &result {
            Err(failure) if failure.kind == FailureKind::Away => {
                self.away(failure.text.clone());
                Vec::new()
            }
            Ok(_) | Err(_) => self.back(),
        };
        effects.extend(take(self, result));
        effects
    }

    /// Says why something did not work, unless it did.
    fn complain<T>(&mut self, result: Outcome<T>) -> Vec<Effect> {
        if let Err(failure) = result {
            self.say(Tone::Failure, failure.text);
        }
        Vec::new()
    }

    fn sent(&mut self, id: &RunId, result: Outcome<Sent>) -> Vec<Effect> {
        if let Some(left) = self.take_left_behind(id) {
            return self.sent_elsewhere(left, result);
        }
        self.note_answered(&StopAsked::Text(id.clone()));
        let at = self.runs.iter().position(|run| run.id == *id);
        match result {
            Ok(Sent::Accepted(answer)) if answer.state == "steered" => {
                self.uncover(id);
                let Some(text) = at.map(|at| self.runs.remove(at).text) else { return self.back() };
                match self.transcript.turn_mut(&answer.run_id).filter(|turn| turn.end.is_none()) {
                    Some(turn) => turn.steered.push(text),
                    None => drop(self.transcript.push(Body::Said(text))),
                }
                self.back()
            }
            Ok(Sent::Accepted(answer)) => {
                let mut effects = self.back();
                if let Some(run) = at.and_then(|at| self.runs.get_mut(at)).filter(|run| !run.followed) {
                    run.followed = true;
                    run.id = answer.run_id.clone();
                    if run.state == RunState::Sending {
                        run.state = RunState::Queued;
                    }
                    effects.push(Effect::Follow { run: answer.run_id, after: 0 });
                }
                effects
            }
            Ok(Sent::Stopped(answer)) => {
                at.map(|at| self.runs.remove(at));
                self.uncover(id);
                self.stop_text_answered(&answer)
            }
            Err(failure) => {
                self.failed(&failure);
                self.uncover(id);
                match at.map(|at| self.runs.remove(at).text) {
                    Some(text) if text == STOP_TEXT => return self.stop_failed(failure),
                    Some(text) => self.not_sent(id.clone(), text, &failure),
                    // A stop took it out of the queue before this was heard, and brought its text.
                    None => {}
                }
                Vec::new()
            }
        }
    }

    /// A message that became no run is covered by no stop.
    fn uncover(&mut self, id: &RunId) {
        self.stop.iter_mut().for_each(|stop| drop(stop.runs.remove(id)));
    }

    fn stop_text_answered(&mut self, answer: &StopAnswer) -> Vec<Effect> {
        let mut effects = self.back();
        let covered: Vec<RunId> = answer.run_ids.iter().chain(&answer.ending).cloned().collect();
        let nothing = covered.is_empty() && answer.withdrawn.is_empty() && answer.processes.is_empty();
        if nothing {
            self.say(Tone::Quiet, self.texts.say("term.notice.nothing"));
        } else {
            self.cover(&covered);
        }
        effects.extend(self.take_back(answer));
        effects
    }

    fn session_stopped(&mut self, session: &SessionKey, result: Outcome<StopAnswer>) -> Vec<Effect> {
        if *session != self.session {
            return self.stopped_elsewhere(session, result);
        }
        self.note_answered(&StopAsked::Session);
        match result {
            Ok(answer) => {
                let mut effects = self.back();
                effects.extend(self.take_back(&answer));
                effects
            }
            Err(failure) => {
                self.failed(&failure);
                self.stop_failed(failure)
            }
        }
    }

    /// Puts the texts of withdrawn messages back into the input, in their order.
    fn take_back(&mut self, answer: &StopAnswer) -> Vec<Effect> {
        // In the order in which they were sent; what others sent comes first.
        let place = |run: &RunId| self.runs.iter().position(|known| known.id == *run).map_or(0, |at| at + 1);
        let mut withdrawn: Vec<_> = answer.withdrawn.iter().collect();
        withdrawn.sort_by_key(|message| place(&message.run_id));
        let mut texts: Vec<_> = withdrawn.into_iter().map(|gone| (gone.run_id.clone(), gone.text.clone())).collect();
        for message in &answer.withdrawn {
            self.forget(&message.run_id);
        }
        if let Some(stop) = self.stop.as_mut().filter(|stop| !stop.awaits_texts()) {
            // What no answer names was withdrawn by its own id: it was on its way, and so the last.
            texts.append(&mut stop.unreturned);
        }
        self.give_back(texts);
        Vec::new()
    }

    /// Puts texts back into the input, each once, whoever brings it.
    pub(super) fn give_back(&mut self, texts: impl IntoIterator<Item = (RunId, String)>) {
        let fresh = texts.into_iter().filter_map(|(run, text)| self.returned.insert(run).then_some(text));
        let fresh: Vec<String> = fresh.collect();
        self.composer.put_back(&fresh);
    }

    fn run_stopped(&mut self, run: &RunId, result: Outcome<()>) -> Vec<Effect> {
        let ours = self.note_answered(&StopAsked::Run(run.clone()));
        match result {
            Ok(()) => self.back(),
            // It is not known yet, or not any more: the daemon keeps the stop for a run that comes late.
            Err(failure) if failure.kind == FailureKind::NotFound => self.back(),
            Err(failure) => {
                self.failed(&failure);
                // A run of another session, stopped from the list: that says nothing about the stop of this one.
                if ours { self.stop_failed(failure) } else { self.complain::<()>(Err(failure)) }
            }
        }
    }

    fn stop_failed(&mut self, failure: Failure) -> Vec<Effect> {
        let Some(stop) = &mut self.stop else { return self.complain::<()>(Err(failure)) };
        let texts = std::mem::take(&mut stop.unreturned);
        match failure.kind {
            FailureKind::Away => stop.problem = Some(failure.text),
            FailureKind::NotFound | FailureKind::Refused => {
                self.transcript.remark(Tone::Failure, self.texts.fill("term.stop.refused", &[("why", &failure.text)]));
                self.stop = None;
                self.leaving = super::state::Leaving::No;
            }
        }
        self.give_back(texts);
        Vec::new()
    }

    fn session_seen(&mut self, key: &SessionKey, result: Outcome<SessionView>) -> Vec<Effect> {
        if *key != self.session {
            return Vec::new();
        }
        let view = match result {
            Ok(view) => view,
            // A token that was revoked meanwhile, for one.
            Err(failure) if failure.kind == FailureKind::Refused => return self.complain::<()>(Err(failure)),
            Err(_) => return Vec::new(),
        };
        self.facts.exists = true;
        let config = view.config;
        self.facts.agent = config.as_ref().map(|config| config.agent.clone()).or(view.row.agent);
        self.facts.model = config.map(|config| config.model.value);
        let known = |id: &RunId| self.runs.iter().any(|run| run.id == *id) || self.transcript.has_ended(id);
        let strange: Vec<RunId> =
            view.row.active_runs.into_iter().filter(|id| !known(id) && !self.looking.contains(id)).collect();
        self.looking.extend(strange.iter().cloned());
        strange.into_iter().map(|run| Effect::Ask(Question::Run(run))).collect()
    }

    fn run_seen(&mut self, id: &RunId, result: Outcome<RunView>) -> Vec<Effect> {
        self.looking.retain(|looked| looked != id);
        let view = match result {
            Ok(view) => view,
            Err(failure) if failure.kind == FailureKind::NotFound && self.transcript.has_ended(id) => {
                self.unsettled.retain(|(run, _)| run != id);
                return Vec::new();
            }
            // A run below one of ours that was deleted with its session.
            Err(failure) if failure.kind == FailureKind::NotFound => {
                self.transcript.below_mut(id, |below| below.state = BelowState::Over(String::new()));
                return Vec::new();
            }
            Err(_) => return Vec::new(),
        };
        let mut effects = Vec::new();
        if let Some(at) = self.doubts.iter().position(|(doubted, _)| doubted == id) {
            let (_, text) = self.doubts.remove(at);
            if self.composer.text() == text {
                self.composer.set(String::new());
            }
            self.say(Tone::Quiet, self.texts.say("term.notice.arrived"));
        }
        let ours = view.session_key == self.session;
        let known = self.run_mut(id).is_some() || self.transcript.has_ended(id);
        if ours && !known && view.state != "ended" {
            effects.push(self.adopt(run_of(&view, self.now)));
        }
        if let Some(holding) = self.stop.as_mut().and_then(|stop| stop.runs.get_mut(id)) {
            holding.delivered = view.delivered_at.is_some();
            holding.resources.clone_from(&view.held);
        }
        if let Some(end) = End::of_view(&view) {
            let known = self.transcript.turn(id).and_then(|turn| turn.end.as_ref());
            if known.is_some_and(|known| known.receipt.is_none() || known.unsettled) {
                self.unsettled.retain(|(run, _)| run != id || end.unsettled);
                self.transcript.turn_mut(id).into_iter().for_each(|turn| turn.end = Some(end.clone()));
            }
            self.transcript.below_mut(id, |below| {
                let word = end.receipt.clone().unwrap_or_else(|| end.verdict.word().to_owned());
                below.state = BelowState::Over(word);
            });
        }
        effects
    }

    /// Sub-runs live in sessions of their own; they are found by their parents among everything that runs.
    fn active_seen(&mut self, rows: Vec<RunView>) -> Vec<Effect> {
        for row in &rows {
            let Some(top) = self.top_of(row, &rows) else { continue };
            let below = Below {
                run: row.run_id.clone(),
                agent: row.agent.clone(),
                since: row.started_at.as_deref().and_then(Moment::read).unwrap_or(self.now),
                state: BelowState::Working(self.state_words(row).to_owned()),
            };
            self.transcript.put_below(&top, below);
        }
        let is_listed = |run: &RunId| rows.iter().any(|row| row.run_id == *run);
        let gone: Vec<RunId> = self.transcript.open_below().filter(|run| !is_listed(run)).cloned().collect();
        if let Some(Menu::Picker(Picker { list: PickList::Runs(listed), .. })) = &mut self.menu {
            *listed = Some(rows);
        }
        gone.into_iter().map(|run| Effect::Ask(Question::Run(run))).collect()
    }

    /// The run of this page that a run was started below of.
    fn top_of(&self, row: &RunView, rows: &[RunView]) -> Option<RunId> {
        let mut parent = row.parent.clone()?;
        for _ in 0..=rows.len() {
            if self.transcript.knows(&parent) {
                return Some(parent);
            }
            parent = rows.iter().find(|row| row.run_id == parent)?.parent.clone()?;
        }
        None
    }

    pub(super) fn state_words(&self, row: &RunView) -> &'static str {
        use quell_protocol::api::ComputeStatus::WaitingLlm;
        self.texts.say(match (row.state.as_str(), row.phase) {
            ("queued", _) => "term.doing.queued",
            ("ending", _) => "term.doing.stopping",
            (_, Some(WaitingLlm)) => "term.doing.waiting",
            _ => "term.doing.working",
        })
    }

    fn approvals_seen(&mut self, rows: Vec<quell_protocol::approval::ApprovalRow>) {
        let ours =
            |chat: &Self, run: &RunId, session: &SessionKey| *session == chat.session || chat.transcript.is_below(run);
        let mut kept = Vec::new();
        for row in rows {
            if !ours(self, &row.run_id, &row.session_key) {
                continue;
            }
            match self.approvals.iter().position(|asked| asked.row.id == row.id) {
                Some(at) => kept.push(self.approvals.remove(at)),
                None => kept.push(Asked { row, answered: false }),
            }
        }
        self.approvals = kept;
    }

    fn hold_seen(&mut self, result: Outcome<quell_protocol::api::Hold>, asked: bool) -> Vec<Effect> {
        match result {
            Ok(hold) => {
                if asked {
                    let key = if hold.held { "term.notice.held" } else { "term.notice.lifted" };
                    self.say(Tone::Quiet, self.texts.say(key));
                }
                self.hold = hold;
                Vec::new()
            }
            Err(failure) if asked => self.complain::<()>(Err(failure)),
            Err(_) => Vec::new(),
        }
    }

    fn history_seen(
        &mut self,
        session: &SessionKey,
        which: &Page,
        result: Outcome<List<HistoryMessage>>,
    ) -> Vec<Effect> {
        if *session != self.session {
            return Vec::new();
        }
        if *which == Page::LastTurn {
            result.into_iter().for_each(|page| self.transcript.learn(&page.items));
            return Vec::new();
        }
        self.pages.asked = false;
        let page = match result {
            Ok(page) => page,
            Err(failure) if failure.kind == FailureKind::NotFound => return Vec::new(),
            Err(failure) => {
                // The top is asked for again when it is seen again.
                self.pages.begun = *which != Page::Newest || failure.kind != FailureKind::Away;
                return Vec::new();
            }
        };
        self.pages.next = page.next_cursor;
        let said = page.items.iter().filter(|message| message.role == "user");
        self.composer.remember_older(said.map(|message| message.text.clone()).collect());
        let troubled = self.transcript.prepend(&page.items);
        troubled.into_iter().map(|run| Effect::Ask(Question::Run(run))).collect()
    }

    fn model_set(&mut self, model: &str, result: Outcome<SessionView>) -> Vec<Effect> {
        match result {
            Ok(view) => {
                self.say(Tone::Quiet, self.texts.fill("term.notice.model", &[("model", model)]));
                // It may be about a session that was left meanwhile.
                let key = view.row.key.clone();
                self.session_seen(&key, Ok(view))
            }
            Err(failure) => self.complain::<()>(Err(failure)),
        }
    }

    /// The agents in the order of their tree, each with its depth.
    pub(super) fn agent_tree(&self) -> Vec<(usize, &quell_protocol::api::AgentRow)> {
        let mut rows = Vec::new();
        let is_root = |row: &&quell_protocol::api::AgentRow| {
            !self.agents.iter().any(|other| Some(&other.id) == row.parent.as_ref())
        };
        let mut open: Vec<(usize, &AgentId)> = self.agents.iter().filter(is_root).map(|row| (0, &row.id)).collect();
        open.reverse();
        while let Some((depth, id)) = open.pop() {
            let Some(row) = self.agents.iter().find(|row| row.id == *id) else { continue };
            rows.push((depth, row));
            // A tree has no circles; a daemon that sends one does not hang the screen.
            if rows.len() > self.agents.len() {
                break;
            }
            open.extend(row.children.iter().rev().map(|child| (depth + 1, child)));
        }
        rows
    }
}

/// A run as it is found: followed from its first event.
fn run_of(view: &RunView, now: Moment) -> Run {
    Run {
        id: view.run_id.clone(),
        text: view.text.clone(),
        state: if view.state == "queued" { RunState::Queued } else { RunState::Running },
        since: view.started_at.as_deref().and_then(Moment::read).unwrap_or(now),
        seq: 0,
        followed: true,
        own: false,
    }
}
