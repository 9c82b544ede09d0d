//! A session that was left while something of it was on its way: its answers change nothing here, and no text is lost with them.

use quell_protocol::api::StopAnswer;
use quell_protocol::{RunId, SessionKey};

use super::act::STOP_TEXT;
use super::effects::{Effect, Failure, FailureKind, Outcome};
use super::state::{Chat, LeftBehind, RunState, Stop};
use super::transcript::Tone;
use crate::link::Sent;

impl Chat {
    /// Forgets the runs of a session that is left; the daemon goes on with them. What is on its way is kept until its answer.
    pub(super) fn leave_behind(&mut self, session: &SessionKey) {
        let stop = self.stop.take().unwrap_or_else(|| Stop::new(self.now));
        let sending = std::mem::take(&mut self.runs).into_iter().filter(|run| run.state == RunState::Sending);
        self.left_behind.extend(sending.map(|run| LeftBehind {
            stopped: stop.runs.contains_key(&run.id),
            run: run.id,
            session: session.clone(),
            text: run.text,
        }));
        // The answer that would bring them in their order is for a page that is gone.
        self.give_back(stop.unreturned);
        if let Some(why) = stop.problem {
            self.not_stopped(session, &why);
        }
    }

    /// A message of a session that was left, if this is one.
    pub(super) fn take_left_behind(&mut self, run: &RunId) -> Option<LeftBehind> {
        let at = self.left_behind.iter().position(|left| left.run == *run)?;
        Some(self.left_behind.remove(at))
    }

    pub(super) fn sent_elsewhere(&mut self, left: LeftBehind, result: Outcome<Sent>) -> Vec<Effect> {
        match result {
            Ok(Sent::Accepted(answer)) => {
                // The daemon keeps the stop of a run that comes late: this one was over before it began.
                if left.stopped && answer.state != "steered" {
                    self.give_back([(left.run, left.text)]);
                }
                self.back()
            }
            Ok(Sent::Stopped(answer)) => {
                self.take_back_elsewhere(answer);
                self.back()
            }
            Err(failure) => {
                self.failed(&failure);
                if left.text == STOP_TEXT {
                    self.not_stopped(&left.session, &failure.text);
                } else {
                    self.not_sent(left.run, left.text, &failure);
                }
                Vec::new()
            }
        }
    }

    pub(super) fn stopped_elsewhere(&mut self, session: &SessionKey, result: Outcome<StopAnswer>) -> Vec<Effect> {
        match result {
            Ok(answer) => {
                self.take_back_elsewhere(answer);
                self.back()
            }
            Err(failure) => {
                self.failed(&failure);
                self.not_stopped(session, &failure.text);
                Vec::new()
            }
        }
    }

    fn take_back_elsewhere(&mut self, answer: StopAnswer) {
        self.give_back(answer.withdrawn.into_iter().map(|message| (message.run_id, message.text)));
    }

    /// Says on the page that a stop of a session that was left was not done.
    fn not_stopped(&mut self, session: &SessionKey, why: &str) {
        let values = [("session", session.as_str()), ("why", why)];
        self.transcript.remark(Tone::Failure, self.texts.fill("term.stop.elsewhere", &values));
    }

    /// A message that could not be sent is back in the input, whatever session that belongs to by now.
    pub(super) fn not_sent(&mut self, run: RunId, text: String, failure: &Failure) {
        self.give_back([(run.clone(), text.clone())]);
        if failure.kind == FailureKind::Away {
            self.doubts.push((run, text));
        }
        self.say(Tone::Failure, self.texts.fill("term.notice.unsent", &[("why", &failure.text)]));
    }
}
