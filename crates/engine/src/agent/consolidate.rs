//! What is kept of an exchange (row D12): when a run has answered, a sub-run of its own asks the model once what of it is worth
//! remembering, and writes that down. Nobody waits for it, and every stop that covers its parent covers it.

use quell_kernel::memory::consolidation::{DAILY, Exchange, Gist, INSTRUCTION, SYSTEM};
use quell_kernel::memory::{CORE, key_of};
use quell_kernel::registry::Phase;
use quell_kernel::run::Outcome;
use quell_kernel::turn::{Block, Message, TurnDraft};
use quell_protocol::ResourceKind;

use super::Job;
use super::answer::unusable;
use super::compact::SilentSink;
use super::delegate::{ChildOrder, ChildPlace, Tie};
use crate::llm::{ModelError, ModelRequest};
use crate::memory::{Note, NoteScope, Remembered};
use crate::scope::{Cancelled, Point};

impl Job<'_> {
    /// Hands an exchange to a sub-run that consolidates it. One that is not let in is a line in the log: nothing is lost but
    /// notes. The answer's own run waits for none of it.
    pub fn hand_to_consolidation(&self, exchange: Exchange) {
        let order = ChildOrder {
            agent: self.agent.id.clone(),
            text: format!("What of run {} is worth remembering?", self.run),
            place: ChildPlace::Memory,
            tie: Tie::Consolidation(exchange),
        };
        if let Err(refusal) = self.reins.leave_child(order) {
            tracing::info!(run = %self.run, refusal, "an exchange is not consolidated");
        }
    }

    /// The work of that sub-run, whose preamble is what was said. No word of the exchange enters its turn, so that it is kept in one place only.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled; what was not written down until then is not remembered.
    ///
    /// # Cancel safety
    /// May be dropped at any await: each note is written whole or not at all.
    pub async fn consolidate(&self, exchange: &Exchange) -> Result<Outcome, Cancelled> {
        let _place = self.scope.race(Point::Consolidation, self.workshop.memory.place_to_consolidate()).await?;
        let held = self.scope.hold(ResourceKind::Permit, "consolidation");
        self.within_budget(1)?;
        self.pen.step(1)?;
        let gist = match self.gist().await? {
            Ok(gist) => gist,
            Err(failure) => return Ok(failure),
        };
        let written = match self.write_down(gist, exchange).await? {
            0 => "Nothing of it was worth remembering.".to_owned(),
            1 => "One note was written.".to_owned(),
            notes => format!("{notes} notes were written."),
        };
        let model = Some(self.agent.model.name().to_owned());
        self.pen.finish_message(Message { model, blocks: vec![Block::Text { text: written }] })?;
        held.release("finished");
        Ok(Outcome::Completed)
    }

    async fn gist(&self) -> Result<Result<Gist, Outcome>, Cancelled> {
        let question = TurnDraft::new(self.run.clone(), INSTRUCTION.to_owned());
        let conversation = self.spell(SYSTEM, &[], &question, self.preamble.as_deref());
        let request = ModelRequest {
            run: self.run,
            agent: &self.agent.id,
            conversation: &conversation,
            tools: &[],
            temperature: self.agent.config.temperature,
            max_tokens: self.agent.config.max_tokens,
            thinking: None,
        };
        self.reins.phase(Phase::Waiting);
        let answer = self.agent.model.call(&request, self.scope, &mut SilentSink { pen: &self.pen }).await;
        self.reins.phase(Phase::Processing);
        self.scope.check(Point::AfterModel)?;
        let failed = |code: &str, message: String| Ok(Err(Outcome::Failed { code: code.to_owned(), message }));
        match answer {
            Ok(answer) => match (unusable(&answer), Gist::read(&answer.message.text())) {
                (Some(unusable), _) => failed(unusable.code, format!("the model {}", unusable.problem)),
                (None, Ok(gist)) => Ok(Ok(gist)),
                (None, Err(problem)) => failed("no_gist", format!("nothing was remembered: {problem}")),
            },
            Err(ModelError::Cancelled) => Err(Cancelled),
            Err(error) => failed(error.code(), error.to_string()),
        }
    }

    /// Answers how many notes were written.
    async fn write_down(&self, gist: Gist, exchange: &Exchange) -> Result<usize, Cancelled> {
        let run = self.pen.run();
        let (clock, of) = (self.pen.clock(), run.parent.as_ref().unwrap_or(&run.id));
        let note = |key: String, category: &str, text: String| Note {
            key,
            category: category.to_owned(),
            text,
            at: clock.rfc3339(clock.now()),
        };
        let happened = gist.history_entry.map(|text| note(format!("{DAILY}_{of}"), DAILY, text));
        let learned = gist.memory_update.map(|text| note(key_of(&text), CORE, text));
        let mut written = 0;
        for note in [happened, learned].into_iter().flatten() {
            let scope = match &exchange.sender {
                Some(sender) => NoteScope::Sender(sender.clone()),
                None => NoteScope::Session(exchange.session.clone()),
            };
            match self.scope.race(Point::Remember, self.workshop.memory.remember(scope, note)).await? {
                Ok(Remembered::New | Remembered::Replaced) => written += 1,
                // It was deleted meanwhile.
                Ok(Remembered::NoSession) => {}
                Err(error) => tracing::error!(run = %self.run, %error, "a note could not be written"),
            }
        }
        Ok(written)
    }
}
