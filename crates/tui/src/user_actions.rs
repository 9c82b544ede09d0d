//! Send messages, stop runs, run slash commands, answer approvals, leave.

use quell_protocol::api::{OnBusy, SendRequest};
use quell_protocol::approval::ApprovalAnswer;
use quell_protocol::mcp::{McpContentCommand, McpContentRequest, McpListKind, McpListedItem};
use quell_protocol::{RunId, SessionKey};

use crate::effects::{ChatEffect, DaemonQuery, Scroll};
use crate::slash_commands::{self, InputLine, SlashCommand};
use crate::state::{
    ChatRun, ChatRunState, ChatSessionInfo, ChatState, ChatStop, ChatStopRequest, DetailsMode, ExitPlan, HistoryPaging,
    Menu, PickerList,
};
use crate::transcript::{ChatTranscript, NoticeLevel};

/// The daemon takes this text for a stop on every surface.
pub(crate) const STOP_TEXT: &str = "/stop";

impl ChatState {
    /// Handles Enter: the input is a command or a message.
    pub(crate) fn submit_input(&mut self) {
        let text = self.composer.text().to_owned();
        if text.trim().is_empty() {
            return;
        }
        match slash_commands::parse_line(&text) {
            InputLine::Text => {
                self.composer.take_text();
                self.send_message(text);
            }
            InputLine::Unknown(word) => {
                let word = word.to_owned();
                self.show_notice(
                    NoticeLevel::Failure,
                    self.texts.format("term.command.unknown", &[("command", &word)]),
                );
            }
            InputLine::Command(command, argument) => {
                let argument = argument.to_owned();
                self.composer.take_text();
                self.run_slash_command(command, &argument);
            }
        }
    }

    /// Returns the id of the message's run.
    fn send_message(&mut self, text: String) -> Option<RunId> {
        let id = self.ids.next_run_id()?;
        let request = SendRequest {
            text: text.clone(),
            agent: self.agent.clone(),
            idempotency_key: Some(id.clone()),
            on_busy: Some(self.busy_policy),
            timeout_ms: None,
            literal: false,
            attachments: Vec::new(),
        };
        let (state, since, own) = (ChatRunState::Sending, self.now, true);
        self.runs.push(ChatRun { id: id.clone(), text, state, since, last_seq: 0, followed: false, sent_here: own });
        self.poll_timers.session.make_due();
        let (session, request) = (self.session.clone(), Box::new(request));
        self.effects.push(ChatEffect::SendMessage { run: id.clone(), session, request });
        self.effects.push(ChatEffect::Scroll(Scroll::Bottom));
        Some(id)
    }

    fn run_slash_command(&mut self, command: SlashCommand, argument: &str) {
        match command {
            SlashCommand::Stop => {
                // A stop text covers more than Esc: also the background processes of earlier runs.
                self.cover_all_runs();
                let sent = self.send_message(STOP_TEXT.into()).map(ChatStopRequest::Text);
                self.stop.iter_mut().for_each(|stop| stop.pending_requests.extend(sent.clone()));
            }
            SlashCommand::New => self.start_new_session(),
            SlashCommand::Model if argument.is_empty() => self.open_picker(PickerList::Models),
            SlashCommand::Model => self.set_model(argument.to_owned()),
            SlashCommand::Agents => self.open_picker(PickerList::Agents),
            SlashCommand::Sessions => self.open_picker(PickerList::Sessions(None)),
            SlashCommand::Runs => self.open_picker(PickerList::Runs(None)),
            SlashCommand::Prompts => self.open_picker(PickerList::Mcp(McpListKind::Prompts, None)),
            SlashCommand::Resources => self.open_picker(PickerList::Mcp(McpListKind::Resources, None)),
            SlashCommand::Prompt => self.read_mcp(McpContentCommand::parse_prompt(argument), "/prompt"),
            SlashCommand::Resource => self.read_mcp(McpContentCommand::parse_resource(argument), "/resource"),
            SlashCommand::Approve => match ApprovalAnswer::parse_allowance(argument) {
                Some(answer) => self.answer_shown_approval(answer),
                None => self.show_notice(NoticeLevel::Failure, self.texts.get("term.notice.approve_usage")),
            },
            SlashCommand::Deny => {
                let reason = Some(argument.to_owned()).filter(|reason| !reason.is_empty());
                self.answer_shown_approval(ApprovalAnswer::denial(reason));
            }
            SlashCommand::Hold => self.run_hold_command(argument),
            SlashCommand::Queue => self.run_queue_command(argument),
            SlashCommand::Undo => self.run_undo_command(argument),
            SlashCommand::Help => self.menu = Some(Menu::Help),
            SlashCommand::Quit => self.quit_or_confirm(),
        }
    }

    /// Asks for a text that is put into the input, so that it can be read before it is sent.
    fn read_mcp(&mut self, command: Option<McpContentCommand>, name: &str) {
        let Some(command) = command else {
            let text = self.texts.format("term.command.misused", &[("command", name)]);
            return self.show_notice(NoticeLevel::Failure, text);
        };
        let agent = self.effective_agent().cloned();
        self.show_notice(NoticeLevel::Info, self.texts.get("term.notice.mcp_asked"));
        self.query(DaemonQuery::McpContent { command: Box::new(command), agent });
    }

    /// Reads an item of a list. For a prompt with required arguments, the input is filled with its command.
    pub(crate) fn choose_mcp_item(&mut self, kind: McpListKind, item: &McpListedItem) {
        let required: Vec<&str> =
            item.arguments.iter().filter(|argument| argument.required).map(|argument| argument.name.as_str()).collect();
        if !required.is_empty() {
            let arguments = required.iter().map(|name| format!(" {name}=")).collect::<String>();
            return self.composer.set_text(format!("/prompt {} {}{arguments}", item.server, item.id));
        }
        let request = match kind {
            McpListKind::Resources => McpContentRequest::Resource(item.id.clone()),
            McpListKind::Prompts => {
                McpContentRequest::Prompt { name: item.id.clone(), arguments: std::collections::BTreeMap::new() }
            }
        };
        let command = McpContentCommand { server: item.server.clone(), request, text: String::new() };
        self.read_mcp(Some(command), "");
    }

    pub(crate) fn set_model(&mut self, model: String) {
        self.effects.push(ChatEffect::SetModel { session: self.session.clone(), model });
    }

    fn start_new_session(&mut self) {
        match self.ids.next_session_key() {
            Ok(key) => self.switch_session(key),
            Err(bad) => self.show_notice(NoticeLevel::Failure, bad.to_string()),
        }
    }

    /// Switches to another session. Runs of the old session continue; the text in the input stays.
    pub(crate) fn switch_session(&mut self, session: SessionKey) {
        if session == self.session {
            return;
        }
        let active_runs = self.runs.len();
        let old = std::mem::replace(&mut self.session, session);
        self.transcript = ChatTranscript::default();
        self.detach_session(&old);
        self.pending_run_lookups.clear();
        self.approvals.clear();
        // A user who switches to another session no longer waits for a stop in order to leave.
        self.exit_plan = ExitPlan::Stay;
        self.session_info = ChatSessionInfo::default();
        self.history = HistoryPaging::default();
        self.poll_timers.session.make_due();
        self.poll_timers.approvals.make_due();
        if active_runs > 0 {
            let text = self.texts.plural("term.notice.goes_on.one", "term.notice.goes_on.many", active_runs);
            self.show_notice(NoticeLevel::Info, format!("{text}: {old}"));
        }
        self.effects.push(ChatEffect::UnfollowAll);
        self.effects.push(ChatEffect::Scroll(Scroll::Bottom));
        self.query(DaemonQuery::Session(self.session.clone()));
    }

    fn run_hold_command(&mut self, argument: &str) {
        match argument {
            "on" => self.effects.push(ChatEffect::SetHold(true)),
            "off" => self.effects.push(ChatEffect::SetHold(false)),
            "" => {
                let key = if self.hold.held { "term.notice.hold_is_on" } else { "term.notice.hold_is_off" };
                self.show_notice(NoticeLevel::Info, self.texts.get(key));
            }
            _ => self.reject_misused_command("/hold", argument),
        }
    }

    /// Takes the file changes of a run back: of the named one, else of the newest run that changed files.
    fn run_undo_command(&mut self, argument: &str) {
        let run = match argument {
            "" => self.transcript.newest_run_with_diffs(),
            id => RunId::parse(id).ok(),
        };
        match run {
            Some(run) => self.effects.push(ChatEffect::UndoRun(run)),
            None if argument.is_empty() => {
                self.show_notice(NoticeLevel::Info, self.texts.get("term.notice.nothing_to_undo"));
            }
            None => self.reject_misused_command("/undo", argument),
        }
    }

    fn run_queue_command(&mut self, argument: &str) {
        self.busy_policy = match argument {
            "queue" => OnBusy::Queue,
            "steer" => OnBusy::Steer,
            "interrupt" => OnBusy::Interrupt,
            "" => return self.cycle_busy_policy(),
            _ => return self.reject_misused_command("/queue", argument),
        };
        self.show_notice(NoticeLevel::Info, self.busy_policy_text());
    }

    /// Puts a misused command back into the input to be corrected.
    fn reject_misused_command(&mut self, name: &str, argument: &str) {
        self.composer.prepend_texts(&[format!("{name} {argument}")]);
        self.show_notice(NoticeLevel::Failure, self.texts.format("term.command.misused", &[("command", name)]));
    }

    pub(crate) fn cycle_busy_policy(&mut self) {
        self.busy_policy = match self.busy_policy {
            OnBusy::Queue => OnBusy::Steer,
            OnBusy::Steer => OnBusy::Interrupt,
            OnBusy::Interrupt | OnBusy::Reject => OnBusy::Queue,
        };
        self.show_notice(NoticeLevel::Info, self.busy_policy_text());
    }

    pub(crate) fn busy_policy_text(&self) -> &'static str {
        self.texts.get(match self.busy_policy {
            OnBusy::Queue => "term.policy.queue",
            OnBusy::Steer => "term.policy.steer",
            OnBusy::Interrupt | OnBusy::Reject => "term.policy.interrupt",
        })
    }

    /// Stops the active runs of the session; forces them if they are already being stopped.
    pub(crate) fn stop_or_force(&mut self) {
        if !self.is_active() {
            return;
        }
        if self.stop_covers_all_runs() { self.force_stop() } else { self.stop_gently() }
    }

    fn stop_gently(&mut self) {
        self.cover_all_runs();
        let sending = self.runs.iter().filter(|run| run.state == ChatRunState::Sending).map(|run| run.id.clone());
        // A message without an answer may not be in the session yet. Stop its run by id; the daemon keeps the stop
        // until the run arrives.
        for run in sending.collect::<Vec<RunId>>() {
            self.request_run_stop(run, false);
        }
        self.stop.iter_mut().for_each(|stop| stop.pending_requests.push(ChatStopRequest::Session));
        self.effects.push(ChatEffect::StopSession { session: self.session.clone(), force: false });
    }

    /// Forces the runs that were stopped gently, each by id: another client may have started a new run, which was never
    /// asked to stop.
    fn force_stop(&mut self) {
        let Some(stop) = &mut self.stop else { return };
        stop.force = true;
        for run in stop.stopping_runs.keys().cloned().collect::<Vec<RunId>>() {
            self.request_run_stop(run, true);
        }
    }

    /// True while a stop covers every active run.
    pub(crate) fn stop_covers_all_runs(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| self.runs.iter().all(|run| stop.stopping_runs.contains_key(&run.id)))
    }

    fn cover_all_runs(&mut self) {
        let all: Vec<RunId> = self.runs.iter().map(|run| run.id.clone()).collect();
        if !all.is_empty() {
            self.cover_runs(&all);
        }
    }

    /// Requests the stop of one run; the stop of this session is not finished before the answer.
    pub(crate) fn request_run_stop(&mut self, run: RunId, force: bool) {
        self.stop.iter_mut().for_each(|stop| stop.pending_requests.push(ChatStopRequest::Run(run.clone())));
        self.effects.push(ChatEffect::StopRun { run, force });
    }

    /// Removes an answered request. True if it belongs to the stop of this session.
    pub(crate) fn complete_stop_request(&mut self, asked: &ChatStopRequest) -> bool {
        let Some(stop) = &mut self.stop else { return false };
        let at = stop.pending_requests.iter().position(|out| out == asked);
        at.map(|at| stop.pending_requests.swap_remove(at)).is_some()
    }

    /// Adds runs of this session to the stop; ignores all others.
    pub(crate) fn cover_runs(&mut self, runs: &[RunId]) {
        let now = self.now;
        let live: Vec<RunId> = self.runs.iter().map(|run| run.id.clone()).filter(|run| runs.contains(run)).collect();
        if live.is_empty() {
            return;
        }
        let stop = self.stop.get_or_insert_with(|| ChatStop::new(now));
        for run in live {
            stop.stopping_runs.entry(run).or_default();
        }
        self.poll_timers.stopping_runs.make_due();
    }

    /// Answers the approval that was shown when the user started typing the command. If that one was answered
    /// elsewhere, the next approval is not answered, because the user has not read it.
    fn answer_shown_approval(&mut self, answer: ApprovalAnswer) {
        let Some(asked) = self.next_approval() else { return self.answer_next_approval(answer) };
        if self.command_approval.as_ref() == Some(&asked.row.id) {
            return self.answer_next_approval(answer);
        }
        let tool = quell_client::text_format::one_line(&asked.row.tool, 60);
        self.show_notice(NoticeLevel::Failure, self.texts.format("term.notice.other_approval", &[("tool", &tool)]));
    }

    /// Answers the oldest approval.
    pub(crate) fn answer_next_approval(&mut self, answer: ApprovalAnswer) {
        let Some(asked) = self.approvals.iter_mut().find(|asked| !asked.answered) else {
            return self.show_notice(NoticeLevel::Info, self.texts.get("term.notice.no_approval"));
        };
        asked.answered = true;
        self.effects.push(ChatEffect::AnswerApproval { id: asked.row.id.clone(), answer });
    }

    /// Ctrl-C clears the input, then stops, then asks whether to leave.
    pub(crate) fn handle_ctrl_c(&mut self) {
        match self.menu {
            Some(Menu::ConfirmLeave) if self.is_active() => return,
            Some(Menu::ConfirmLeave) => return self.effects.push(ChatEffect::Exit),
            Some(Menu::Help | Menu::Picker(_)) => return self.menu = None,
            None => {}
        }
        if !self.composer.is_empty() {
            self.composer.clear_text();
            return;
        }
        if self.is_active() && !self.stop_covers_all_runs() {
            return self.stop_or_force();
        }
        self.menu = Some(Menu::ConfirmLeave);
    }

    /// Exits, or asks first while a run is active.
    pub(crate) fn quit_or_confirm(&mut self) {
        if !self.is_active() {
            return self.effects.push(ChatEffect::Exit);
        }
        self.menu = Some(Menu::ConfirmLeave);
    }

    /// Stops everything and exits when it has ended.
    pub(crate) fn stop_and_leave(&mut self) {
        self.menu = None;
        self.exit_plan = ExitPlan::WhenStopped;
        if !self.stop_covers_all_runs() {
            self.stop_or_force();
        }
    }

    pub(crate) fn toggle_details(&mut self) {
        self.details = match self.details {
            DetailsMode::Folded => DetailsMode::Open,
            DetailsMode::Open => DetailsMode::Folded,
        };
    }
}
