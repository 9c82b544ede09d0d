//! The sessions that the editor has open, and the prompts that run in them.
//!
//! A cancellation names a session and no prompt. It covers the prompts that are active when it arrives: messages of the
//! editor are handled in their order, and a prompt leaves the list before its answer is sent. So a cancellation that
//! crosses the end of its prompt reaches none.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_protocol::RunId;
use tokio_util::sync::CancellationToken;

#[derive(Default)]
pub(crate) struct OpenSessions {
    sessions: Mutex<HashMap<String, OpenSession>>,
    /// Cancelled when the editor has closed the connection.
    editor_gone: CancellationToken,
}

struct OpenSession {
    workdir: PathBuf,
    prompts: Vec<ActivePrompt>,
}

#[derive(Clone)]
struct ActivePrompt {
    run: RunId,
    cancel: CancellationToken,
    /// Cancelled when its answer is sent.
    answered: CancellationToken,
}

/// A prompt that is active until this is ended or dropped.
pub(crate) struct PromptGuard {
    sessions: Arc<OpenSessions>,
    session: String,
    prompt: ActivePrompt,
    pub(crate) workdir: PathBuf,
}

impl OpenSessions {
    /// Opens a session, or sets another workdir for an open one.
    pub(crate) fn open(&self, session: &str, workdir: PathBuf) {
        let mut sessions = self.lock();
        match sessions.get_mut(session) {
            Some(open) => open.workdir = workdir,
            None => {
                sessions.insert(session.to_owned(), OpenSession { workdir, prompts: Vec::new() });
            }
        }
    }

    pub(crate) fn is_open(&self, session: &str) -> bool {
        self.lock().contains_key(session)
    }

    /// Adds a prompt to a session; `None` if the session is not open.
    pub(crate) fn begin_prompt(self: &Arc<Self>, session: &str, run: RunId) -> Option<PromptGuard> {
        let (cancel, answered) = (CancellationToken::new(), CancellationToken::new());
        let prompt = ActivePrompt { run, cancel, answered };
        let mut sessions = self.lock();
        let open = sessions.get_mut(session)?;
        open.prompts.push(prompt.clone());
        let (session, workdir) = (session.to_owned(), open.workdir.clone());
        Some(PromptGuard { sessions: Arc::clone(self), session, prompt, workdir })
    }

    /// Cancels the active prompts of a session.
    pub(crate) fn cancel(&self, session: &str) {
        if let Some(open) = self.lock().get(session) {
            cancel_all(&open.prompts);
        }
    }

    /// Cancels the prompts of a session, waits for their answers, and closes it. False if it is not open.
    pub(crate) async fn close(&self, session: &str) -> bool {
        let Some(open) = self.lock().remove(session) else { return false };
        wait_answered(open.prompts).await;
        true
    }

    /// Cancels all prompts, because the editor has closed the connection, and waits for their answers.
    pub(crate) async fn close_all(&self) {
        self.editor_gone.cancel();
        let open: Vec<OpenSession> = self.lock().drain().map(|(_, open)| open).collect();
        wait_answered(open.into_iter().flat_map(|open| open.prompts).collect()).await;
    }

    pub(crate) fn is_editor_gone(&self) -> bool {
        self.editor_gone.is_cancelled()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, OpenSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those that wait come first, so that none begins when the one before it ends.
fn cancel_all(prompts: &[ActivePrompt]) {
    prompts.iter().rev().for_each(|prompt| prompt.cancel.cancel());
}

async fn wait_answered(prompts: Vec<ActivePrompt>) {
    cancel_all(&prompts);
    for prompt in prompts {
        prompt.answered.cancelled().await;
    }
}

impl PromptGuard {
    pub(crate) fn run(&self) -> &RunId {
        &self.prompt.run
    }

    pub(crate) fn cancel_token(&self) -> CancellationToken {
        self.prompt.cancel.clone()
    }

    pub(crate) fn is_editor_gone(&self) -> bool {
        self.sessions.is_editor_gone()
    }

    /// Takes the prompt out of the list: from now on a cancellation does not reach it.
    pub(crate) fn leave(&self) {
        if let Some(open) = self.sessions.lock().get_mut(&self.session) {
            open.prompts.retain(|prompt| prompt.run != self.prompt.run);
        }
    }
}

impl Drop for PromptGuard {
    fn drop(&mut self) {
        self.leave();
        self.prompt.answered.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(sessions: &Arc<OpenSessions>, run: &str) -> PromptGuard {
        sessions.begin_prompt("s", RunId::parse(run).unwrap()).unwrap()
    }

    #[test]
    fn a_cancellation_reaches_only_active_prompts() {
        let sessions = Arc::new(OpenSessions::default());
        assert!(sessions.begin_prompt("s", RunId::parse("r0").unwrap()).is_none());
        sessions.open("s", "/w".into());
        let (first, second) = (begin(&sessions, "r1"), begin(&sessions, "r2"));
        first.leave();
        sessions.cancel("s");
        assert!(!first.cancel_token().is_cancelled() && second.cancel_token().is_cancelled());
        let third = begin(&sessions, "r3");
        assert!(!third.cancel_token().is_cancelled());
        sessions.cancel("unknown");
    }

    #[tokio::test]
    async fn a_closed_session_waits_for_the_answers_of_its_prompts() {
        let sessions = Arc::new(OpenSessions::default());
        sessions.open("s", "/w".into());
        let prompt = begin(&sessions, "r1");
        let cancelled = prompt.cancel_token();
        let answer = async move {
            cancelled.cancelled().await;
            drop(prompt);
        };
        let (closed, ()) = tokio::join!(sessions.close("s"), answer);
        assert!(closed && !sessions.is_open("s"));
        assert!(!sessions.close("s").await);
    }
}
