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
use crate::turn::ChatTurnEnd;
use crate::unix_millis::UnixMillis;

const NOTICE_DURATION: Duration = Duration::from_secs(6);
/// How long to poll an ended run for amendments of its receipt.
const UNSETTLED_WATCH_TIME: Duration = Duration::from_secs(600);

impl ChatState {
    /// Applies an input that arrived at `now`.
    pub(crate) fn update(&mut self, input: ChatInput, now: UnixMillis) -> Vec<ChatEffect> {
        self.now = now;
        match input {
            ChatInput::Key(key) => self.handle_key(key),
            ChatInput::Paste(text) => self.handle_paste(&text),
            ChatInput::Tick => self.handle_tick(),
            ChatInput::TopReached => self.request_older_page(),
            ChatInput::RunUpdate(run, seen) => self.handle_run_update(&run, seen),
            ChatInput::Response(answer) => self.handle_response(answer),
        }
        self.select_first_row();
        self.update_shown_approval();
        self.finish_stop();
        std::mem::take(&mut self.effects)
    }

    fn handle_paste(&mut self, text: &str) {
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
    }

    /// Asks the queries that are due.
    fn handle_tick(&mut self) {
        let now = self.now;
        if self.notice.as_ref().is_some_and(|notice| now >= notice.until) {
            self.notice = None;
        }
        if self.poll_timers.session.start_if_due(now) {
            self.query(DaemonQuery::Session(self.session.clone()));
        }
        if self.poll_timers.approvals.start_if_due(now) {
            self.query(DaemonQuery::Approvals);
        }
        if self.poll_timers.hold.start_if_due(now) {
            self.query(DaemonQuery::Hold);
        }
        let listed = matches!(&self.menu, Some(Menu::Picker(Picker { list: PickerList::Runs(_), .. })));
        let below = self.transcript.open_sub_runs().next().is_some();
        if (self.is_active() || listed || below) && self.poll_timers.active.start_if_due(now) {
            self.query(DaemonQuery::ActiveRuns);
        }
        self.unsettled_runs.retain(|(run, until)| now < *until && self.transcript.has_ended(run));
        if !self.unsettled_runs.is_empty() && self.poll_timers.unsettled_runs.start_if_due(now) {
            let unsettled = self.unsettled_runs.iter().map(|(run, _)| ChatEffect::Query(DaemonQuery::Run(run.clone())));
            self.effects.extend(unsettled);
        }
        if !std::mem::replace(&mut self.poll_timers.agents_requested, true) {
            self.query(DaemonQuery::Agents);
        }
        if let Some(stop) = &self.stop
            && self.poll_timers.stopping_runs.start_if_due(now)
        {
            self.effects.extend(stop.stopping_runs.keys().cloned().map(|run| ChatEffect::Query(DaemonQuery::Run(run))));
        }
        if self.session_info.exists && !self.history.requested_first {
            self.history.requested_first = true;
            self.history.request_pending = true;
            self.query(DaemonQuery::History { session: self.session.clone(), page: HistorySlice::NewestPage });
        }
    }

    /// Requests the older page of the history when the top is visible.
    fn request_older_page(&mut self) {
        if let Some(cursor) = self.history.next_cursor.clone().filter(|_| !self.history.request_pending) {
            self.history.request_pending = true;
            let (session, page) = (self.session.clone(), HistorySlice::PageBefore(cursor));
            self.query(DaemonQuery::History { session, page });
        }
    }

    fn handle_run_update(&mut self, run: &RunId, seen: ChatRunUpdate) {
        if self.run_mut(run).is_none() {
            return;
        }
        match seen {
            ChatRunUpdate::Event(event) => self.handle_run_event(run, &event),
            ChatRunUpdate::Disconnected(cause) => self.mark_disconnected(cause),
            ChatRunUpdate::Reconnected => self.mark_connected(),
            ChatRunUpdate::FollowFailed(failure) => {
                self.transcript
                    .push_remark(NoticeLevel::Failure, self.texts.format("term.run.gone", &[("why", &failure.text)]));
                self.transcript.turn_mut(run).into_iter().for_each(crate::turn::ChatTurn::mark_lost);
                self.remove_run(run);
            }
        }
    }

    fn handle_run_event(&mut self, id: &RunId, event: &RunEvent) {
        let at = UnixMillis::parse_rfc3339(&event.at).unwrap_or(self.now);
        let Some(run) = self.run_mut(id).filter(|run| event.seq > run.last_seq) else { return };
        run.last_seq = event.seq;
        let waiting = matches!(run.state, ChatRunState::Sending | ChatRunState::Queued);
        match &event.kind {
            EventKind::Queued { .. } => {
                run.state = ChatRunState::Queued;
                return;
            }
            // A message withdrawn from the queue leaves nothing in the transcript.
            EventKind::Ending { .. } if waiting => return,
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
        self.apply_event_beside_transcript(id, event);
    }

    /// Applies an event to everything but the transcript.
    fn apply_event_beside_transcript(&mut self, id: &RunId, event: &RunEvent) {
        match &event.kind {
            EventKind::ApprovalRequested { .. } | EventKind::ApprovalUpdated { .. } => {
                self.query(DaemonQuery::Approvals)
            }
            EventKind::ApprovalResolved { id, .. } => self.approvals.retain(|asked| asked.row.id != *id),
            EventKind::Ended { .. } => {
                self.remove_run(id);
                self.session_info.exists = true;
                // Ask at once how its sub-runs ended.
                self.poll_timers.active.make_due();
                let end = self.transcript.turn(id).and_then(|turn| turn.end.as_ref());
                if end.is_some_and(ChatTurnEnd::awaits_amendment) {
                    self.unsettled_runs.push((id.clone(), self.now.plus(UNSETTLED_WATCH_TIME)));
                }
                if self.transcript.turn(id).is_some_and(crate::turn::ChatTurn::has_undecided_cut) {
                    self.query(DaemonQuery::History { session: self.session.clone(), page: HistorySlice::LastTurn });
                }
            }
            _ => {}
        }
    }

    /// Handles a message withdrawn from the queue: by a stop of this chat, whose answer returns its text, or by another
    /// client.
    fn handle_withdrawn(&mut self, id: &RunId) {
        let Some(at) = self.runs.iter().position(|run| run.id == *id) else { return };
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
    fn finish_stop(&mut self) {
        if let Some(stop) = self.stop.take_if(|stop| stop.is_finished()) {
            self.restore_texts(stop.withdrawn_texts);
        }
        if self.exit_plan == ExitPlan::WhenStopped && self.stop.is_none() && !self.is_active() {
            self.exit_plan = ExitPlan::Stay;
            self.effects.push(ChatEffect::Exit);
        }
    }

    pub(crate) fn follow_run(&mut self, run: ChatRun) {
        self.effects.push(ChatEffect::FollowRun { run: run.id.clone(), after: run.last_seq });
        self.runs.push(run);
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
    pub(crate) fn mark_connected(&mut self) {
        let before = std::mem::replace(&mut self.connection, DaemonConnectionStatus::Live);
        if !matches!(before, DaemonConnectionStatus::Lost { .. }) {
            return;
        }
        self.show_notice(NoticeLevel::Info, self.texts.get("term.notice.back"));
        self.poll_timers.agents_requested = false;
        self.poll_timers.session.make_due();
        let unconfirmed =
            self.unconfirmed_sends.iter().map(|(run, _)| ChatEffect::Query(DaemonQuery::Run(run.clone())));
        self.effects.extend(unconfirmed);
        if let Some(stop) = &mut self.stop
            && stop.problem.take().is_some()
        {
            // Only the runs that the stop covered: others may have started since.
            let force = stop.force;
            for run in stop.stopping_runs.keys().cloned().collect::<Vec<RunId>>() {
                self.request_run_stop(run, force);
            }
        }
    }

    /// Updates the connection status from a failure.
    pub(crate) fn note_failure(&mut self, failure: &DaemonFailure) {
        if failure.kind == DaemonFailureKind::Unreachable {
            self.mark_disconnected(failure.text.clone());
        }
    }
}
