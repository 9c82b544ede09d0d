//! Estimate the tokens of a request of a client, without sending it.

use quell_kernel::client_request::{AnswerOptions, ClientConversation};
use quell_kernel::image::{Image, ImageSource};
use quell_kernel::prompt::{self, ImageSet, Prompt, Vision};
use quell_llm::{ModelCallRequest, ModelError, UnknownModel};
use quell_protocol::{AgentId, RunId};

use super::{AGENT_PREFIX, Engine};
use crate::agent::MODEL_CALLS;
use crate::live_run::draft_with;

/// Why the tokens of a request cannot be estimated.
#[derive(Debug, thiserror::Error)]
pub enum CountTokensError {
    #[error(transparent)]
    UnknownModel(#[from] UnknownModel),
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl Engine {
    /// Estimates the tokens of a request as the limits of runs do, before the provider counts. For an agent, its prompt
    /// counts, too; its tools and notes do not.
    ///
    /// # Errors
    /// [`CountTokensError`] for an unknown model, and for options that its provider does not have.
    pub fn count_client_tokens(
        &self,
        model: &str,
        conversation: &ClientConversation,
        answer: &AnswerOptions,
    ) -> Result<u64, CountTokensError> {
        let unknown = || UnknownModel { name: model.to_owned(), providers: Vec::new() };
        let (handle, prompt) = match model.strip_prefix(AGENT_PREFIX) {
            Some(name) => {
                let id = AgentId::parse(name).map_err(|_| unknown())?;
                let agent = self.agent_registry().get(&id).ok_or_else(unknown)?;
                (agent.model.clone(), agent.system_prompt.clone())
            }
            None => (self.inner().models.resolve(model)?, String::new()),
        };
        let ClientConversation { instructions, turns, .. } = conversation;
        let Ok(run) = RunId::parse("count-tokens") else { unreachable!("it has legal characters only") };
        let draft = draft_with(run.clone(), conversation.text.clone(), &conversation.continuation);
        let mut images = ImageSet::default();
        for source in prompt::wanted_image_sources(turns, Some(&draft)) {
            if let ImageSource::Data(url) = ImageSource::parse(&source) {
                images.insert_if_absent(source.clone(), Image::from_data_url(url));
            }
        }
        let encoded = handle.encode_conversation(&Prompt {
            model: handle.name(),
            system: &format!("{prompt}{instructions}"),
            turns,
            draft: Some(&draft),
            run_context: None,
            time_zone: None,
            vision: Vision::Images(&images),
        });
        Ok(handle.estimate_input_tokens(&ModelCallRequest {
            run: &run,
            agent: &MODEL_CALLS,
            conversation: &encoded,
            tools: &answer.tools,
            answer,
            thinking: answer.thinking.mode_or(None),
            web_search: false,
        })?)
    }
}
