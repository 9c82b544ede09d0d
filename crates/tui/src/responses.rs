//! Apply the daemon's responses to the chat state.

use quell_client::daemon_client::{SendReply, StopReply};
use quell_client::receipt_line;
use quell_client::text_format::one_line;
use quell_protocol::api::{AgentRow, HistoryMessage, Hold, Page, RunView, StopAnswer};
use quell_protocol::approval::{ApprovalRow, ApprovalState};
use quell_protocol::mcp::{McpList, McpListKind};
use quell_protocol::session::SessionView;
use quell_protocol::undo::UndoReport;
use quell_protocol::{AgentId, RunId, SessionKey};

use crate::effects::{
    ChatEffect, DaemonFailure, DaemonFailureKind, DaemonQuery, DaemonResponse, DaemonResult, HistorySlice, PollInterval,
};
use crate::state::{ChatApproval, ChatRun, ChatRunState, ChatState, ChatStopRequest, Menu, Picker, PickerList};
use crate::transcript::{EntryBody, NoticeLevel};
use crate::turn::{ChatSubRun, ChatSubRunState, ChatTurnEnd};
use crate::unix_millis::UnixMillis;
use crate::user_actions::STOP_TEXT;

/// Characters of a path or a phrase in the report of an undo.
const MAX_REPORT_CHARS: usize = 200;

impl ChatState {
    pub(crate) fn handle_response(&mut self, answer: DaemonResponse) {
        let now = self.now;
        match answer {
            DaemonResponse::Sent { run, result } => self.handle_sent(&run, result),
            DaemonResponse::SessionStopped { session, result } => self.handle_session_stopped(&session, result),
            DaemonResponse::RunStopped { run, result } => self.handle_run_stopped(&run, result),
            DaemonResponse::Session { key, result } => {
                self.poll_timers.session.schedule_next(now, PollInterval::Normal);
                self.handle_result(result, |chat, result| chat.update_session(&key, result))
            }
            DaemonResponse::Run { run, result } => {
                self.poll_timers.stopping_runs.schedule_next(now, PollInterval::Fast);
                self.poll_timers.unsettled_runs.schedule_next(now, PollInterval::Relaxed);
                self.handle_result(result, |chat, result| chat.update_run(&run, result))
            }
            DaemonResponse::ActiveRuns(result) => {
                self.poll_timers.active.schedule_next(now, PollInterval::Relaxed);
                self.handle_result(result, |chat, result| {
                    result.into_iter().for_each(|rows| chat.update_active_runs(rows));
                })
            }
            DaemonResponse::Approvals(result) => {
                self.poll_timers.approvals.schedule_next(now, PollInterval::Normal);
                self.handle_result(result, |chat, result| {
                    result.into_iter().for_each(|rows| chat.update_approvals(rows));
                })
            }
            DaemonResponse::ApprovalAnswered { id, result } => {
                self.handle_result(result, |chat, result| match result {
                    Ok(row) if row.state == ApprovalState::Pending => chat.update_counted_approval(row),
                    Ok(_) => chat.approvals.retain(|asked| asked.row.id != id),
                    Err(failure) => {
                        chat.approvals.retain(|asked| asked.row.id != id);
                        chat.show_failure(failure);
                    }
                })
            }
            DaemonResponse::Hold { result, by_user } => {
                self.poll_timers.hold.schedule_next(now, PollInterval::Normal);
                self.handle_result(result, |chat, result| chat.update_hold(result, by_user))
            }
            DaemonResponse::Agents(result) => self.handle_result(result, |chat, result| {
                result.into_iter().for_each(|rows| chat.agents = rows);
            }),
            DaemonResponse::Sessions(result) => self.handle_result(result, |chat, result| {
                if let (Some(Menu::Picker(Picker { list: PickerList::Sessions(rows), .. })), Ok(seen)) =
                    (&mut chat.menu, result)
                {
                    *rows = Some(seen);
                }
            }),
            DaemonResponse::History { session, page: which, result } => {
                self.handle_result(result, |chat, result| chat.update_history(&session, &which, result))
            }
            DaemonResponse::McpList { kind, result } => {
                self.handle_result(result, |chat, result| chat.update_mcp_list(kind, result))
            }
            DaemonResponse::McpContent { text, result } => self.handle_result(result, |chat, result| match result {
                Ok(content) => chat.insert_mcp_content(&content.text, &text),
                Err(failure) => chat.show_failure(failure),
            }),
            DaemonResponse::Undone(result) => self.handle_undone(result),
            DaemonResponse::ModelSet { model, result } => {
                self.handle_result(result, |chat, result| chat.handle_model_set(&model, result))
            }
        }
    }

    /// Updates the connection status from any response, then handles the response.
    fn handle_result<T>(&mut self, result: DaemonResult<T>, handle: impl FnOnce(&mut Self, DaemonResult<T>)) {
        match &result {
            Err(failure) if failure.kind == DaemonFailureKind::Unreachable => self.note_failure(failure),
            Ok(_) | Err(_) => self.mark_connected(),
        }
        handle(self, result);
    }

    fn update_mcp_list(&mut self, kind: McpListKind, result: DaemonResult<McpList>) {
        let list = match result {
            Ok(list) => list,
            Err(failure) => {
                if matches!(&self.menu, Some(Menu::Picker(Picker { list: PickerList::Mcp(..), .. }))) {
                    self.menu = None;
                }
                return self.show_failure(failure);
            }
        };
        if let Some(Menu::Picker(Picker { list: PickerList::Mcp(shown, rows), .. })) = &mut self.menu
            && *shown == kind
        {
            *rows = Some(list.items);
        }
        if let Some(broken) = list.unavailable.first() {
            self.show_notice(NoticeLevel::Failure, format!("{}: {}", broken.server, broken.problem));
        }
    }

    /// Puts what a server gave into the input, before the text of the user.
    fn insert_mcp_content(&mut self, content: &str, text: &str) {
        let parts: Vec<&str> = [content, text].into_iter().filter(|part| !part.trim().is_empty()).collect();
        self.composer.insert_text(&parts.join("\n\n"));
    }

    fn show_failure(&mut self, failure: DaemonFailure) {
        self.show_notice(NoticeLevel::Failure, failure.text);
    }

    fn handle_sent(&mut self, id: &RunId, result: DaemonResult<SendReply>) {
        if let Some(left) = self.take_detached_send(id) {
            return self.handle_detached_sent(left, result);
        }
        self.complete_stop_request(&ChatStopRequest::Text(id.clone()));
        let at = self.runs.iter().position(|run| run.id == *id);
        match result {
            Ok(SendReply::Accepted(answer)) if answer.state == "steered" => {
                self.uncover_run(id);
                let Some(text) = at.map(|at| self.runs.remove(at).text) else { return self.mark_connected() };
                match self.transcript.turn_mut(&answer.run_id).filter(|turn| turn.end.is_none()) {
                    Some(turn) => turn.pending_steered.push(text),
                    None => drop(self.transcript.push_entry(EntryBody::UserMessage(text))),
                }
                self.mark_connected();
            }
            Ok(SendReply::Accepted(answer)) => {
                self.mark_connected();
                if let Some(run) = at.and_then(|at| self.runs.get_mut(at)).filter(|run| !run.followed) {
                    run.followed = true;
                    run.id = answer.run_id.clone();
                    if run.state == ChatRunState::Sending {
                        run.state = ChatRunState::Queued;
                    }
                    self.effects.push(ChatEffect::FollowRun { run: answer.run_id, after: 0 });
                }
            }
            Ok(SendReply::Stopped(answer)) => {
                at.map(|at| self.runs.remove(at));
                self.uncover_run(id);
                self.handle_stop_text_reply(&answer);
            }
            Err(failure) => {
                self.note_failure(&failure);
                self.uncover_run(id);
                match at.map(|at| self.runs.remove(at).text) {
                    Some(text) if text == STOP_TEXT => self.handle_stop_failure(failure),
                    Some(text) => self.restore_unsent_text(id.clone(), text, &failure),
                    // A stop withdrew the message before this failure arrived, and returned its text.
                    None => {}
                }
            }
        }
    }

    /// Removes a message that started no run from the stop.
    fn uncover_run(&mut self, id: &RunId) {
        self.stop.iter_mut().for_each(|stop| drop(stop.stopping_runs.remove(id)));
    }

    fn handle_stop_text_reply(&mut self, answer: &StopAnswer) {
        self.mark_connected();
        let covered: Vec<RunId> = answer.run_ids.iter().chain(&answer.ending).cloned().collect();
        let nothing = covered.is_empty()
            && answer.withdrawn.is_empty()
            && answer.processes.is_empty()
            && answer.paused_schedules.is_empty();
        if nothing {
            self.show_notice(NoticeLevel::Info, self.texts.get("term.notice.nothing"));
        } else {
            self.cover_runs(&covered);
        }
        self.show_paused_schedules(answer);
        self.restore_withdrawn(answer);
    }

    fn handle_session_stopped(&mut self, session: &SessionKey, result: DaemonResult<StopAnswer>) {
        if *session != self.session {
            return self.handle_detached_stop(session, result);
        }
        self.complete_stop_request(&ChatStopRequest::Session);
        match result {
            Ok(answer) => {
                self.mark_connected();
                self.restore_withdrawn(&answer);
                self.show_paused_schedules(&answer);
                if let Some(node) = answer.unreached.iter().max_by_key(|node| node.lease_ends_in_ms) {
                    let names = answer.unreached.iter().map(|node| node.node.as_str()).collect::<Vec<_>>().join(", ");
                    let seconds = node.lease_ends_in_ms.div_ceil(1000).to_string();
                    let text = self.texts.format("stop.unreached", &[("nodes", &names), ("seconds", &seconds)]);
                    self.show_notice(NoticeLevel::Failure, text);
                }
            }
            Err(failure) => {
                self.note_failure(&failure);
                self.handle_stop_failure(failure);
            }
        }
    }

    /// Adds a remark that names the schedules which a stop has paused, and one if a restart could forget the pauses.
    pub(crate) fn show_paused_schedules(&mut self, answer: &StopAnswer) {
        if !answer.paused_schedules.is_empty() {
            let ids = answer.paused_schedules.join(", ");
            let text = self.texts.format("stop.paused-schedules", &[("ids", &ids)]);
            self.transcript.push_remark(NoticeLevel::Info, text);
        }
        if answer.unstored_pauses {
            let text = self.texts.format("stop.unstored", &[]);
            self.transcript.push_remark(NoticeLevel::Failure, text);
        }
    }

    /// Puts the texts of withdrawn messages back into the input, in the order they were sent.
    fn restore_withdrawn(&mut self, answer: &StopAnswer) {
        // Messages that other clients sent come first.
        let place = |run: &RunId| self.runs.iter().position(|known| known.id == *run).map_or(0, |at| at + 1);
        let mut withdrawn: Vec<_> = answer.withdrawn.iter().collect();
        withdrawn.sort_by_key(|message| place(&message.run_id));
        let mut texts: Vec<_> = withdrawn.into_iter().map(|gone| (gone.run_id.clone(), gone.text.clone())).collect();
        for message in &answer.withdrawn {
            self.remove_run(&message.run_id);
        }
        if let Some(stop) = self.stop.as_mut().filter(|stop| !stop.awaits_texts()) {
            // Messages that no answer names were stopped by id before they reached the daemon, so they are the last.
            texts.append(&mut stop.withdrawn_texts);
        }
        self.restore_texts(texts);
    }

    /// Puts texts back into the input. A text that several answers return is put back once.
    pub(crate) fn restore_texts(&mut self, texts: impl IntoIterator<Item = (RunId, String)>) {
        let fresh = texts.into_iter().filter_map(|(run, text)| self.restored_runs.insert(run).then_some(text));
        let fresh: Vec<String> = fresh.collect();
        self.composer.prepend_texts(&fresh);
    }

    fn handle_run_stopped(&mut self, run: &RunId, result: DaemonResult<StopReply>) {
        let is_own = self.complete_stop_request(&ChatStopRequest::Run(run.clone()));
        match result {
            Ok(reply) => {
                self.mark_connected();
                if let StopReply::Ticket(ticket) = reply {
                    self.show_paused_schedules(&ticket.stop);
                }
            }
            // The daemon does not know the run yet and keeps the stop for it, or the run is gone.
            Err(failure) if failure.kind == DaemonFailureKind::NotFound => self.mark_connected(),
            Err(failure) => {
                self.note_failure(&failure);
                // A run of another session, stopped from the list, does not affect the stop of this session.
                if is_own { self.handle_stop_failure(failure) } else { self.show_failure(failure) }
            }
        }
    }

    fn handle_stop_failure(&mut self, failure: DaemonFailure) {
        let Some(stop) = &mut self.stop else { return self.show_failure(failure) };
        let texts = std::mem::take(&mut stop.withdrawn_texts);
        match failure.kind {
            DaemonFailureKind::Unreachable => stop.problem = Some(failure.text),
            DaemonFailureKind::NotFound | DaemonFailureKind::Refused => {
                self.transcript.push_remark(
                    NoticeLevel::Failure,
                    self.texts.format("term.stop.refused", &[("why", &failure.text)]),
                );
                self.stop = None;
                self.exit_plan = crate::state::ExitPlan::Stay;
            }
        }
        self.restore_texts(texts);
    }

    fn update_session(&mut self, key: &SessionKey, result: DaemonResult<SessionView>) {
        if *key != self.session {
            return;
        }
        let view = match result {
            Ok(view) => view,
            // For example, the token was revoked.
            Err(failure) if failure.kind == DaemonFailureKind::Refused => return self.show_failure(failure),
            Err(_) => return,
        };
        self.session_info.exists = true;
        let config = view.config;
        self.session_info.agent = config.as_ref().map(|config| config.agent.clone()).or(view.row.agent);
        self.session_info.model = config.map(|config| config.model.value);
        let known = |id: &RunId| self.runs.iter().any(|run| run.id == *id) || self.transcript.has_ended(id);
        let unknown_runs: Vec<RunId> = view
            .row
            .active_runs
            .into_iter()
            .filter(|id| !known(id) && !self.pending_run_lookups.contains(id))
            .collect();
        self.pending_run_lookups.extend(unknown_runs.iter().cloned());
        unknown_runs.into_iter().for_each(|run| self.query(DaemonQuery::Run(run)));
    }

    fn update_run(&mut self, id: &RunId, result: DaemonResult<RunView>) {
        self.pending_run_lookups.retain(|looked| looked != id);
        let view = match result {
            Ok(view) => view,
            Err(failure) if failure.kind == DaemonFailureKind::NotFound && self.transcript.has_ended(id) => {
                self.unsettled_runs.retain(|(run, _)| run != id);
                return;
            }
            // A sub-run that was deleted with its session.
            Err(failure) if failure.kind == DaemonFailureKind::NotFound => {
                self.transcript.update_sub_run(id, |below| below.state = ChatSubRunState::Ended(String::new()));
                return;
            }
            Err(_) => return,
        };
        if let Some(at) = self.unconfirmed_sends.iter().position(|(doubted, _)| doubted == id) {
            let (_, text) = self.unconfirmed_sends.remove(at);
            if self.composer.text() == text {
                self.composer.set_text(String::new());
            }
            self.show_notice(NoticeLevel::Info, self.texts.get("term.notice.arrived"));
        }
        let is_own = view.session_key == self.session;
        let known = self.run_mut(id).is_some() || self.transcript.has_ended(id);
        if is_own && !known && view.state != "ended" {
            self.follow_run(chat_run_from_view(&view, self.now));
        }
        if let Some(holding) = self.stop.as_mut().and_then(|stop| stop.stopping_runs.get_mut(id)) {
            holding.delivered = view.delivered_at.is_some();
            holding.resources.clone_from(&view.held);
        }
        if let Some(end) = ChatTurnEnd::from_view(&view) {
            let known = self.transcript.turn(id).and_then(|turn| turn.end.as_ref());
            if known.is_some_and(|known| known.receipt.is_none() || known.awaits_amendment()) {
                self.unsettled_runs.retain(|(run, _)| run != id || end.awaits_amendment());
                self.transcript.turn_mut(id).into_iter().for_each(|turn| turn.end = Some(end.clone()));
            }
            self.transcript.update_sub_run(id, |below| {
                let word = end.receipt.as_ref().map_or_else(|| end.verdict.as_str().to_owned(), receipt_line);
                below.state = ChatSubRunState::Ended(word);
            });
        }
    }

    /// Sub-runs are in sessions of their own; they are found by their parents among all active runs.
    fn update_active_runs(&mut self, rows: Vec<RunView>) {
        for row in &rows {
            let Some(top) = self.displayed_ancestor_of(row, &rows) else { continue };
            let below = ChatSubRun {
                run: row.run_id.clone(),
                agent: row.agent.clone(),
                since: row.started_at.as_deref().and_then(UnixMillis::parse_rfc3339).unwrap_or(self.now),
                state: ChatSubRunState::Working(self.run_state_text(row).to_owned()),
            };
            self.transcript.upsert_sub_run(&top, below);
        }
        let is_listed = |run: &RunId| rows.iter().any(|row| row.run_id == *run);
        let gone: Vec<RunId> = self.transcript.open_sub_runs().filter(|run| !is_listed(run)).cloned().collect();
        if let Some(Menu::Picker(Picker { list: PickerList::Runs(listed), .. })) = &mut self.menu {
            *listed = Some(rows);
        }
        gone.into_iter().for_each(|run| self.query(DaemonQuery::Run(run)));
    }

    /// The run of this session that started this run, directly or through other runs.
    fn displayed_ancestor_of(&self, row: &RunView, rows: &[RunView]) -> Option<RunId> {
        let mut parent = row.parent.clone()?;
        for _ in 0..=rows.len() {
            if self.transcript.has_run(&parent) {
                return Some(parent);
            }
            parent = rows.iter().find(|row| row.run_id == parent)?.parent.clone()?;
        }
        None
    }

    pub(crate) fn run_state_text(&self, row: &RunView) -> &'static str {
        use quell_protocol::api::ComputeStatus::WaitingLlm;
        self.texts.get(match (row.state.as_str(), row.phase) {
            ("queued", _) => "term.doing.queued",
            ("ending", _) => "term.doing.stopping",
            (_, Some(WaitingLlm)) => "term.doing.waiting",
            _ => "term.doing.working",
        })
    }

    /// Keeps an approval that this person has allowed and that still needs others, as answered.
    fn update_counted_approval(&mut self, row: ApprovalRow) {
        let (allowed, quorum) = (row.allowed_by.len().to_string(), row.quorum.to_string());
        let text = self.texts.format("term.notice.allowed_so_far", &[("n", &allowed), ("quorum", &quorum)]);
        self.show_notice(NoticeLevel::Info, text);
        if let Some(asked) = self.approvals.iter_mut().find(|asked| asked.row.id == row.id) {
            *asked = ChatApproval { row, answered: true };
        }
    }

    fn update_approvals(&mut self, rows: Vec<ApprovalRow>) {
        let mut known = std::mem::take(&mut self.approvals);
        let is_own = |row: &ApprovalRow| row.session_key == self.session || self.transcript.is_sub_run(&row.run_id);
        let kept =
            rows.into_iter().filter(is_own).map(|row| match known.iter().position(|asked| asked.row.id == row.id) {
                Some(at) => ChatApproval { row, ..known.remove(at) },
                None => ChatApproval { row, answered: false },
            });
        self.approvals = kept.collect();
    }

    fn update_hold(&mut self, result: DaemonResult<Hold>, by_user: bool) {
        match result {
            Ok(hold) => {
                if by_user {
                    let key = if hold.held { "term.notice.held" } else { "term.notice.lifted" };
                    self.show_notice(NoticeLevel::Info, self.texts.get(key));
                }
                self.hold = hold;
            }
            Err(failure) if by_user => self.show_failure(failure),
            Err(_) => {}
        }
    }

    fn update_history(
        &mut self,
        session: &SessionKey,
        which: &HistorySlice,
        result: DaemonResult<Page<HistoryMessage>>,
    ) {
        if *session != self.session {
            return;
        }
        if *which == HistorySlice::LastTurn {
            return result.into_iter().for_each(|page| self.transcript.apply_stored_messages(&page.items));
        }
        self.history.request_pending = false;
        let page = match result {
            Ok(page) => page,
            Err(failure) if failure.kind == DaemonFailureKind::NotFound => return,
            Err(failure) => {
                // Ask for the older page again when the top is visible again.
                self.history.requested_first =
                    *which != HistorySlice::NewestPage || failure.kind != DaemonFailureKind::Unreachable;
                return;
            }
        };
        self.history.next_cursor = page.next_cursor;
        let said = page.items.iter().filter(|message| message.role == "user");
        self.composer.prepend_history(said.map(|message| message.text.clone()).collect());
        let unsuccessful_runs = self.transcript.prepend_history(&page.items);
        unsuccessful_runs.into_iter().for_each(|run| self.query(DaemonQuery::Run(run)));
    }

    /// Names the files that were put back, and what the undo does not cover.
    fn handle_undone(&mut self, result: DaemonResult<UndoReport>) {
        let report = match result {
            Ok(report) => report,
            Err(failure) => return self.show_failure(failure),
        };
        let paths: Vec<String> = report.files.iter().map(|file| one_line(&file.path, MAX_REPORT_CHARS)).collect();
        let mut text = match paths.as_slice() {
            [] => self.texts.get("term.notice.undone_nothing").to_owned(),
            paths => self.texts.format("term.notice.undone", &[("files", &paths.join(", "))]),
        };
        for what in &report.not_covered {
            text += "; ";
            text += &self.texts.format("term.notice.not_covered", &[("what", &one_line(what, MAX_REPORT_CHARS))]);
        }
        self.transcript.push_remark(NoticeLevel::Info, text);
    }

    fn handle_model_set(&mut self, model: &str, result: DaemonResult<SessionView>) {
        match result {
            Ok(view) => {
                self.show_notice(NoticeLevel::Info, self.texts.format("term.notice.model", &[("model", model)]));
                // The answer may be for a session that the user has left.
                let key = view.row.key.clone();
                self.update_session(&key, Ok(view));
            }
            Err(failure) => self.show_failure(failure),
        }
    }

    /// The agents in tree order, each with its depth.
    pub(crate) fn agent_tree(&self) -> Vec<(usize, &AgentRow)> {
        let mut rows = Vec::new();
        let is_root = |row: &&AgentRow| !self.agents.iter().any(|other| Some(&other.id) == row.parent.as_ref());
        let mut open: Vec<(usize, &AgentId)> = self.agents.iter().filter(is_root).map(|row| (0, &row.id)).collect();
        open.reverse();
        while let Some((depth, id)) = open.pop() {
            let Some(row) = self.agents.iter().find(|row| row.id == *id) else { continue };
            rows.push((depth, row));
            // Stop if a broken daemon sends a tree with a cycle.
            if rows.len() > self.agents.len() {
                break;
            }
            open.extend(row.children.iter().rev().map(|child| (depth + 1, child)));
        }
        rows
    }
}

/// A run found in the daemon: follow it from its first event.
fn chat_run_from_view(view: &RunView, now: UnixMillis) -> ChatRun {
    ChatRun {
        id: view.run_id.clone(),
        text: view.text.clone(),
        state: if view.state == "queued" { ChatRunState::Queued } else { ChatRunState::Running },
        since: view.started_at.as_deref().and_then(UnixMillis::parse_rfc3339).unwrap_or(now),
        last_seq: 0,
        followed: true,
        sent_here: false,
    }
}
