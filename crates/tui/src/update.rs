//! The step of the state machine: apply one input, return effects; no IO, no clock.

use std::time::Duration;

use quell_protocol::{EventKind, RunEvent, RunId, Verdict};

use crate::effects::{
    ChatEffect, ChatInput, ChatRunUpdate, DaemonFailure, DaemonFailureKind, DaemonQuery, HistorySlice,
};
use crate::state::{
    ChatRun, ChatRunState, ChatState, DaemonConnectionStatus, ExitPlan, Menu, Picker, PickerList, PickerSelection,
    StatusNotice,
};
use crate::transcript::NoticeLevel;
use crate::unix_millis::UnixMillis;

const NOTICE_DURATION: Duration = Duration::from_secs(6);
/// How long to poll an ended run for amendments of its receipt.
const UNSETTLED_WATCH_TIME: Duration = Duration::from_secs(600);

impl ChatState {
    /// Applies an input that arrived at `now`.
    pub(crate) fn update(&mut self, input: ChatInput, now: UnixMillis) -> Vec<ChatEffect> {
        self.now = now;
        let mut effects = match input {
            ChatInput::Key(key) => self.handle_key(key),
            ChatInput::Paste(text) => self.handle_paste(&text),
            ChatInput::Tick => self.handle_tick(),
            ChatInput::TopReached => self.request_older_page(),
            ChatInput::RunUpdate(run, seen) => self.handle_run_update(&run, seen),
            ChatInput::Response(answer) => self.handle_response(answer),
        };
        self.select_first_row();
        self.update_shown_approval();
        effects.extend(self.finish_stop());
        effects
    }

    fn handle_paste(&mut self, text: &str) -> Vec<ChatEffect> {
        match &mut self.menu {
            Some(Menu::Picker(picker)) => {
                picker.filter.push_str(text.lines().next().unwrap_or_default());
                picker.chosen = PickerSelection::First;
            }
            Some(Menu::Help | Menu::ConfirmLeave) => {
                self.menu = None;
                self.composer.insert_text(text);
            }
            None => self.composer.insert_text(text),
        }
        Vec::new()
    }

    /// Returns the queries that are due.
    fn handle_tick(&mut self) -> Vec<ChatEffect> {
        let now = self.now;
        if self.notice.as_ref().is_some_and(|notice| now >= notice.until) {
            self.notice = None;
        }
        let mut questions = Vec::new();
        if self.poll_timers.session.start_if_due(now) {
            questions.push(DaemonQuery::Session(self.session.clone()));
        }
        if self.poll_timers.approvals.start_if_due(now) {
            questions.push(DaemonQuery::Approvals);
        }
        if self.poll_timers.hold.start_if_due(now) {
            questions.push(DaemonQuery::Hold);
        }
        let listed = matches!(&self.menu, Some(Menu::Picker(Picker { list: PickerList::Runs(_), .. })));
        let below = self.transcript.open_sub_runs().next().is_some();
        if (self.is_active() || listed || below) && self.poll_timers.active.start_if_due(now) {
            questions.push(DaemonQuery::ActiveRuns);
        }
        self.unsettled_runs.retain(|(run, until)| now < *until && self.transcript.has_ended(run));
        if !self.unsettled_runs.is_empty() && self.poll_timers.unsettled_runs.start_if_due(now) {
            questions.extend(self.unsettled_runs.iter().map(|(run, _)| DaemonQuery::Run(run.clone())));
        }
        if !std::mem::replace(&mut self.poll_timers.agents_requested, true) {
            questions.push(DaemonQuery::Agents);
        }
        if let Some(stop) = &self.stop
            && self.poll_timers.stopping_runs.start_if_due(now)
        {
            questions.extend(stop.stopping_runs.keys().cloned().map(DaemonQuery::Run));
        }
        if self.session_info.exists && !self.history.requested_first {
            self.history.requested_first = true;
            self.history.request_pending = true;
            questions.push(DaemonQuery::History { session: self.session.clone(), page: HistorySlice::NewestPage });
        }
        questions.into_iter().map(ChatEffect::Query).collect()
    }

    /// Requests the older page of the history when the top is visible.
    fn request_older_page(&mut self) -> Vec<ChatEffect> {
        match self.history.next_cursor.clone() {
            Some(cursor) if !self.history.request_pending => {
                self.history.request_pending = true;
                let (session, page) = (self.session.clone(), HistorySlice::PageBefore(cursor));
                vec![ChatEffect::Query(DaemonQuery::History { session, page })]
            }
            _ => Vec::new(),
        }
    }

    fn handle_run_update(&mut self, run: &RunId, seen: ChatRunUpdate) -> Vec<ChatEffect> {
        if self.run_mut(run).is_none() {
            return Vec::new();
        }
        match seen {
            ChatRunUpdate::Event(event) => self.handle_run_event(run, &event),
            ChatRunUpdate::Disconnected(cause) => {
                self.mark_disconnected(cause);
                Vec::new()
            }
            ChatRunUpdate::Reconnected => self.mark_connected(),
            ChatRunUpdate::FollowFailed(failure) => {
                self.transcript
                    .push_remark(NoticeLevel::Failure, self.texts.format("term.run.gone", &[("why", &failure.text)]));
                self.transcript.turn_mut(run).into_iter().for_each(crate::turn::ChatTurn::mark_lost);
                self.remove_run(run);
                Vec::new()
            }
        }
    }

    fn handle_run_event(&mut self, id: &RunId, event: &RunEvent) -> Vec<ChatEffect> {
        let at = UnixMillis::parse_rfc3339(&event.at).unwrap_or(self.now);
        let Some(run) = self.run_mut(id).filter(|run| event.seq > run.last_seq) else { return Vec::new() };
        run.last_seq = event.seq;
        let waiting = matches!(run.state, ChatRunState::Sending | ChatRunState::Queued);
        match &event.kind {
            EventKind::Queued { .. } => {
                run.state = ChatRunState::Queued;
                return Vec::new();
            }
            // A message withdrawn from the queue leaves nothing in the transcript.
            EventKind::Ending { .. } if waiting => return Vec::new(),
            EventKind::Ended { verdict: Verdict::Aborted { .. }, .. } if waiting => return self.handle_withdrawn(id),
            EventKind::Ending { .. } => run.state = ChatRunState::Ending,
            EventKind::Ended { .. } => {}
            _ if waiting => {
                run.state = ChatRunState::Running;
                run.since = at;
            }
            _ => {}
        }
        let text = run.text.clone();
        self.transcript.begin_turn(id, &text);
        if let Some(turn) = self.transcript.turn_mut(id) {
            turn.apply_event(&event.kind, at);
        }
        self.effects_of_event(id, event)
    }

    /// Effects of an event besides the transcript.
    fn effects_of_event(&mut self, id: &RunId, event: &RunEvent) -> Vec<ChatEffect> {
        match &event.kind {
            EventKind::ApprovalRequested { .. } => vec![ChatEffect::Query(DaemonQuery::Approvals)],
            EventKind::ApprovalResolved { id, .. } => {
                self.approvals.retain(|asked| asked.row.id != *id);
                Vec::new()
            }
            EventKind::Ended { .. } => {
                self.remove_run(id);
                self.session_info.exists = true;
                // Ask at once how its sub-runs ended.
                self.poll_timers.active.make_due();
                let end = self.transcript.turn(id).and_then(|turn| turn.end.as_ref());
                if end.is_some_and(|end| end.awaits_amendment) {
                    self.unsettled_runs.push((id.clone(), self.now.plus(UNSETTLED_WATCH_TIME)));
                }
                let has_cut = self.transcript.turn(id).is_some_and(crate::turn::ChatTurn::has_undecided_cut);
                let question = DaemonQuery::History { session: self.session.clone(), page: HistorySlice::LastTurn };
                has_cut.then_some(ChatEffect::Query(question)).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Handles a message withdrawn from the queue: by a stop of this chat, whose answer returns its text, or by another
    /// client.
    fn handle_withdrawn(&mut self, id: &RunId) -> Vec<ChatEffect> {
        let Some(at) = self.runs.iter().position(|run| run.id == *id) else { return Vec::new() };
        let run = self.runs.remove(at);
        let covered = self.stop.as_mut().is_some_and(|stop| stop.stopping_runs.remove(id).is_some());
        match &mut self.stop {
            Some(stop) if covered && stop.awaits_texts() => stop.withdrawn_texts.push((run.id, run.text)),
            _ if run.sent_here => {
                self.restore_texts([(run.id, run.text)]);
                self.show_notice(NoticeLevel::Info, self.texts.get("term.notice.withdrawn"));
            }
            _ => {}
        }
        Vec::new()
    }

    /// Removes a run that has ended or is lost.
    pub(crate) fn remove_run(&mut self, id: &RunId) {
        self.runs.retain(|run| run.id != *id);
        self.approvals.retain(|asked| asked.row.run_id != *id);
        if let Some(stop) = &mut self.stop {
            stop.stopping_runs.remove(id);
        }
    }

    /// Ends the stop when nothing is left of it, and exits if that was planned.
    fn finish_stop(&mut self) -> Vec<ChatEffect> {
        if let Some(stop) = self.stop.take_if(|stop| stop.is_finished()) {
            self.restore_texts(stop.withdrawn_texts);
        }
        if self.exit_plan == ExitPlan::WhenStopped && self.stop.is_none() && !self.is_active() {
            self.exit_plan = ExitPlan::Stay;
            return vec![ChatEffect::Exit];
        }
        Vec::new()
    }

    pub(crate) fn follow_run(&mut self, run: ChatRun) -> ChatEffect {
        let effect = ChatEffect::FollowRun { run: run.id.clone(), after: run.last_seq };
        self.runs.push(run);
        effect
    }

    pub(crate) fn show_notice(&mut self, tone: NoticeLevel, text: impl Into<String>) {
        self.notice = Some(StatusNotice { level: tone, text: text.into(), until: self.now.plus(NOTICE_DURATION) });
    }

    pub(crate) fn mark_disconnected(&mut self, cause: String) {
        if !matches!(self.connection, DaemonConnectionStatus::Lost { .. }) {
            self.connection = DaemonConnectionStatus::Lost { since: self.now, cause };
        }
    }

    /// The daemon answers again: repeats what failed during the outage.
    pub(crate) fn mark_connected(&mut self) -> Vec<ChatEffect> {
        let before = std::mem::replace(&mut self.connection, DaemonConnectionStatus::Live);
        if !matches!(before, DaemonConnectionStatus::Lost { .. }) {
            return Vec::new();
        }
        self.show_notice(NoticeLevel::Info, self.texts.get("term.notice.back"));
        self.poll_timers.agents_requested = false;
        self.poll_timers.session.make_due();
        let mut effects: Vec<ChatEffect> =
            self.unconfirmed_sends.iter().map(|(run, _)| ChatEffect::Query(DaemonQuery::Run(run.clone()))).collect();
        if let Some(stop) = &mut self.stop
            && stop.problem.take().is_some()
        {
            // Only the runs that the stop covered: others may have started since.
            let force = stop.force;
            let again: Vec<ChatEffect> =
                stop.stopping_runs.keys().cloned().map(|run| ChatEffect::StopRun { run, force }).collect();
            self.add_pending_stop_requests(&again);
            effects.extend(again);
        }
        effects
    }

    /// Updates the connection status from a failure.
    pub(crate) fn note_failure(&mut self, failure: &DaemonFailure) {
        if failure.kind == DaemonFailureKind::Unreachable {
            self.mark_disconnected(failure.text.clone());
        }
    }
}
