//! Modes and options of a session: its agent, its model, and how much it thinks.

use quell_client::{ClientError, DaemonClient};
use quell_protocol::api::AgentRow;
use quell_protocol::session::{SessionView, ThinkingLevel};
use quell_protocol::web_ui::{ModelRow, SessionPatch};
use quell_protocol::{AgentId, SessionKey};

use crate::errors::invalid;
use crate::wire::{
    RpcError, SessionConfigOption, SessionConfigOptionCategory, SessionConfigOptionValue, SessionConfigSelectOption,
    SessionMode, SessionModeState,
};

const MODE_OPTION: &str = "mode";
const MODEL_OPTION: &str = "model";
const THINKING_OPTION: &str = "thinking";
const THINKING_LEVELS: [ThinkingLevel; 6] = [
    ThinkingLevel::Default,
    ThinkingLevel::Off,
    ThinkingLevel::Low,
    ThinkingLevel::Medium,
    ThinkingLevel::High,
    ThinkingLevel::Adaptive,
];

/// What a session may choose from, and what it has chosen.
pub(crate) struct EditorSettings {
    agents: Vec<AgentRow>,
    models: Vec<ModelRow>,
    agent: String,
    model: String,
    thinking: ThinkingLevel,
}

impl EditorSettings {
    pub(crate) async fn fetch(client: &DaemonClient, key: &SessionKey) -> Result<Self, ClientError> {
        let (view, agents, models) =
            tokio::try_join!(client.get_session(key), client.list_agents(), client.list_models())?;
        Ok(Self::of(&view, agents, models))
    }

    fn of(view: &SessionView, agents: Vec<AgentRow>, models: Vec<ModelRow>) -> Self {
        let config = view.config.as_ref();
        let default_agent = || agents.iter().find(|agent| agent.default).map(|agent| agent.id.to_string());
        let agent = config.map(|config| config.agent.to_string()).or_else(default_agent).unwrap_or_default();
        Self {
            agent,
            model: config.map(|config| config.model.value.clone()).unwrap_or_default(),
            thinking: config.map_or(ThinkingLevel::Default, |config| config.thinking.value),
            agents,
            models,
        }
    }

    /// The agents, as modes.
    pub(crate) fn modes(&self) -> SessionModeState {
        let mode = |agent: &AgentRow| {
            SessionMode::new(agent.id.to_string(), agent.id.to_string()).description(describe_agent(agent))
        };
        SessionModeState::new(self.agent.clone(), self.agents.iter().map(mode).collect::<Vec<_>>())
    }

    pub(crate) fn options(&self) -> Vec<SessionConfigOption> {
        let agents = self.agents.iter().map(|agent| {
            SessionConfigSelectOption::new(agent.id.to_string(), agent.id.to_string())
                .description(describe_agent(agent))
        });
        let mut model_names: Vec<&str> = self.models.iter().map(|row| row.model.as_str()).collect();
        if !self.model.is_empty() && !model_names.contains(&self.model.as_str()) {
            model_names.push(&self.model);
        }
        let models =
            model_names.iter().map(|name| SessionConfigSelectOption::new((*name).to_owned(), (*name).to_owned()));
        let levels = THINKING_LEVELS
            .iter()
            .map(|level| SessionConfigSelectOption::new(level.as_str().to_owned(), level.as_str().to_owned()));
        vec![
            SessionConfigOption::select(MODE_OPTION, "Agent", self.agent.clone(), agents.collect::<Vec<_>>())
                .category(SessionConfigOptionCategory::Mode),
            SessionConfigOption::select(MODEL_OPTION, "Model", self.model.clone(), models.collect::<Vec<_>>())
                .category(SessionConfigOptionCategory::Model),
            SessionConfigOption::select(
                THINKING_OPTION,
                "Thinking",
                self.thinking.as_str().to_owned(),
                levels.collect::<Vec<_>>(),
            )
            .category(SessionConfigOptionCategory::ThoughtLevel),
        ]
    }
}

fn describe_agent(agent: &AgentRow) -> Option<String> {
    Some(agent.role.clone().unwrap_or_else(|| agent.model.clone()))
}

/// The change of a session that a new mode means.
pub(crate) fn patch_for_mode(mode: &str) -> Result<SessionPatch, RpcError> {
    let agent = AgentId::parse(mode).map_err(|bad| invalid(format!("mode {mode:?}: {bad}")))?;
    Ok(SessionPatch { agent: Some(agent), ..SessionPatch::default() })
}

/// The change of a session that a new value of an option means.
pub(crate) fn patch_for_option(id: &str, value: &SessionConfigOptionValue) -> Result<SessionPatch, RpcError> {
    let SessionConfigOptionValue::ValueId { value } = value else {
        return Err(invalid(format!("the option {id:?} takes one of its values")));
    };
    let value = value.to_string();
    match id {
        MODE_OPTION => patch_for_mode(&value),
        MODEL_OPTION => Ok(SessionPatch { model: Some(value), ..SessionPatch::default() }),
        THINKING_OPTION => {
            let level = THINKING_LEVELS.into_iter().find(|level| level.as_str() == value);
            let level = level.ok_or_else(|| invalid(format!("thinking has no value {value:?}")))?;
            Ok(SessionPatch { thinking: Some(level), ..SessionPatch::default() })
        }
        _ => Err(invalid(format!("there is no option {id:?}; the options are mode, model and thinking"))),
    }
}
