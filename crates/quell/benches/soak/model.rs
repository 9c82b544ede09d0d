//! The scripted model of the soak: its answers by marker.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_testkit::history_check::corpus::ModelDialect;
use quell_testkit::{ScriptedModel, ScriptedResponse};

/// Answers by the last marker of a request.
type AnswerScripts = HashMap<String, VecDeque<ScriptedResponse>>;

#[derive(Debug)]
pub(crate) struct SoakModel {
    pub(crate) server: ScriptedModel,
    scripts: Arc<Mutex<AnswerScripts>>,
    anthropic_requests: Arc<AtomicUsize>,
}

impl SoakModel {
    pub(crate) async fn start() -> Self {
        let (scripts, anthropic_requests) = (Arc::<Mutex<AnswerScripts>>::default(), Arc::<AtomicUsize>::default());
        let (answers, anthropic) = (Arc::clone(&scripts), Arc::clone(&anthropic_requests));
        let server = ScriptedModel::start().await;
        server.discard_valid_requests().respond_by_prompt(move |_, request| {
            if request.dialect == ModelDialect::Anthropic {
                anthropic.fetch_add(1, Ordering::Relaxed);
            }
            let mut answers = lock(&answers);
            let marker = request.markers.last().and_then(|marker| answers.get_mut(marker));
            marker.and_then(VecDeque::pop_front).unwrap_or_else(|| ScriptedResponse::text("That is done."))
        });
        Self { server, scripts, anthropic_requests }
    }

    /// Answers to requests with these last markers, in order; after them a default text.
    pub(crate) fn script(&self, answers: Vec<(String, Vec<ScriptedResponse>)>) {
        lock(&self.scripts).extend(answers.into_iter().map(|(marker, answers)| (marker, answers.into())));
    }

    /// Deletes the remaining answers for these markers.
    pub(crate) fn forget(&self, markers: &[String]) {
        lock(&self.scripts).retain(|marker, _| !markers.contains(marker));
    }

    pub(crate) fn anthropic_requests(&self) -> usize {
        self.anthropic_requests.load(Ordering::Relaxed)
    }
}

fn lock(scripts: &Mutex<AnswerScripts>) -> MutexGuard<'_, AnswerScripts> {
    scripts.lock().unwrap_or_else(PoisonError::into_inner)
}
