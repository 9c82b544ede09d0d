//! Handle late responses to messages and stops of a session that was switched away from. They change nothing in the
//! current session, and no text is lost.

use quell_client::daemon_client::SendReply;
use quell_protocol::api::StopAnswer;
use quell_protocol::{RunId, SessionKey};

use crate::effects::{DaemonFailure, DaemonFailureKind, DaemonResult};
use crate::state::{ChatRunState, ChatState, ChatStop, DetachedSend};
use crate::transcript::NoticeLevel;
use crate::user_actions::STOP_TEXT;

impl ChatState {
    /// Drops the runs of the old session, which continue in the daemon. Messages without an answer are kept until it
    /// arrives.
    pub(crate) fn detach_session(&mut self, session: &SessionKey) {
        let stop = self.stop.take().unwrap_or_else(|| ChatStop::new(self.now));
        let sending = std::mem::take(&mut self.runs).into_iter().filter(|run| run.state == ChatRunState::Sending);
        self.detached_sends.extend(sending.map(|run| DetachedSend {
            stop_requested: stop.stopping_runs.contains_key(&run.id),
            run: run.id,
            session: session.clone(),
            text: run.text,
        }));
        // The answer that would order these texts belongs to a session that is no longer shown.
        self.restore_texts(stop.withdrawn_texts);
        if let Some(why) = stop.problem {
            self.show_detached_stop_failure(session, &why);
        }
    }

    pub(crate) fn take_detached_send(&mut self, run: &RunId) -> Option<DetachedSend> {
        let at = self.detached_sends.iter().position(|left| left.run == *run)?;
        Some(self.detached_sends.remove(at))
    }

    pub(crate) fn handle_detached_sent(&mut self, left: DetachedSend, result: DaemonResult<SendReply>) {
        match result {
            Ok(SendReply::Accepted(answer)) => {
                // The daemon keeps a stop that arrives before its run: this run ended before it started.
                if left.stop_requested && answer.state != "steered" {
                    self.restore_texts([(left.run, left.text)]);
                }
                self.mark_connected();
            }
            Ok(SendReply::Stopped(answer)) => {
                self.show_paused_schedules(&answer);
                self.restore_detached_texts(answer);
                self.mark_connected();
            }
            Err(failure) => {
                self.note_failure(&failure);
                if left.text == STOP_TEXT {
                    self.show_detached_stop_failure(&left.session, &failure.text);
                } else {
                    self.restore_unsent_text(left.run, left.text, &failure);
                }
            }
        }
    }

    pub(crate) fn handle_detached_stop(&mut self, session: &SessionKey, result: DaemonResult<StopAnswer>) {
        match result {
            Ok(answer) => {
                self.restore_detached_texts(answer);
                self.mark_connected();
            }
            Err(failure) => {
                self.note_failure(&failure);
                self.show_detached_stop_failure(session, &failure.text);
            }
        }
    }

    fn restore_detached_texts(&mut self, answer: StopAnswer) {
        self.restore_texts(answer.withdrawn.into_iter().map(|message| (message.run_id, message.text)));
    }

    /// Adds a remark that a stop of the old session failed.
    fn show_detached_stop_failure(&mut self, session: &SessionKey, why: &str) {
        let values = [("session", session.as_str()), ("why", why)];
        self.transcript.push_remark(NoticeLevel::Failure, self.texts.format("term.stop.elsewhere", &values));
    }

    /// Puts an unsent message back into the input, even if another session is shown by now.
    pub(crate) fn restore_unsent_text(&mut self, run: RunId, text: String, failure: &DaemonFailure) {
        self.restore_texts([(run.clone(), text.clone())]);
        if failure.kind == DaemonFailureKind::Unreachable {
            self.unconfirmed_sends.push((run, text));
        }
        self.show_notice(NoticeLevel::Failure, self.texts.format("term.notice.unsent", &[("why", &failure.text)]));
    }
}
