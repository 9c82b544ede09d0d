//! Modes and options of a session: its agent, its model, and how much it thinks.

use quell_client::{ClientError, DaemonClient};
use quell_protocol::api::AgentRow;
use quell_protocol::session::{SessionView, ThinkingLevel};
use quell_protocol::web_ui::{ModelRow, SessionPatch};
use quell_protocol::{AgentId, SessionKey};

use crate::errors::invalid;
use crate::wire::RpcError;

const THINKING_LEVELS: [ThinkingLevel; 6] = [
    ThinkingLevel::Default,
    ThinkingLevel::Off,
    ThinkingLevel::Low,
    ThinkingLevel::Medium,
    ThinkingLevel::High,
    ThinkingLevel::Adaptive,
];

/// An option of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionOption {
    pub(crate) kind: SessionOptionKind,
    pub(crate) current: String,
    pub(crate) values: Vec<SessionOptionValue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionOptionKind {
    /// The agent. Version 1 also knows it as the mode of the session.
    Agent,
    Model,
    Thinking,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionOptionValue {
    pub(crate) id: String,
    pub(crate) description: Option<String>,
}

impl SessionOptionKind {
    const ALL: [Self; 3] = [Self::Agent, Self::Model, Self::Thinking];

    pub(crate) const fn id(self) -> &'static str {
        match self {
            Self::Agent => "mode",
            Self::Model => "model",
            Self::Thinking => "thinking",
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Agent => "Agent",
            Self::Model => "Model",
            Self::Thinking => "Thinking",
        }
    }
}

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

    pub(crate) fn options(&self) -> [SessionOption; 3] {
        SessionOptionKind::ALL.map(|kind| match kind {
            SessionOptionKind::Agent => self.agent_setting(),
            SessionOptionKind::Model => self.model_setting(),
            SessionOptionKind::Thinking => {
                let values = THINKING_LEVELS.iter().map(|level| SessionOptionValue::plain(level.as_str())).collect();
                SessionOption { kind, current: self.thinking.as_str().to_owned(), values }
            }
        })
    }

    pub(crate) fn agent_setting(&self) -> SessionOption {
        let value =
            |agent: &AgentRow| SessionOptionValue { id: agent.id.to_string(), description: describe_agent(agent) };
        let values = self.agents.iter().map(value).collect();
        SessionOption { kind: SessionOptionKind::Agent, current: self.agent.clone(), values }
    }

    fn model_setting(&self) -> SessionOption {
        let mut names: Vec<&str> = self.models.iter().map(|row| row.model.as_str()).collect();
        if !self.model.is_empty() && !names.contains(&self.model.as_str()) {
            names.push(&self.model);
        }
        let values = names.into_iter().map(SessionOptionValue::plain).collect();
        SessionOption { kind: SessionOptionKind::Model, current: self.model.clone(), values }
    }
}

impl SessionOptionValue {
    fn plain(id: &str) -> Self {
        Self { id: id.to_owned(), description: None }
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

/// The change of a session that a new value of an option means. `None`: the value is of another kind than a choice.
pub(crate) fn patch_for_option(id: &str, value: Option<&str>) -> Result<SessionPatch, RpcError> {
    let Some(kind) = SessionOptionKind::ALL.into_iter().find(|kind| kind.id() == id) else {
        return Err(invalid(format!("there is no option {id:?}; the options are mode, model and thinking")));
    };
    let value = value.ok_or_else(|| invalid(format!("the option {id:?} takes one of its values")))?;
    match kind {
        SessionOptionKind::Agent => patch_for_mode(value),
        SessionOptionKind::Model => Ok(SessionPatch { model: Some(value.to_owned()), ..SessionPatch::default() }),
        SessionOptionKind::Thinking => {
            let level = THINKING_LEVELS.into_iter().find(|level| level.as_str() == value);
            let level = level.ok_or_else(|| invalid(format!("thinking has no value {value:?}")))?;
            Ok(SessionPatch { thinking: Some(level), ..SessionPatch::default() })
        }
    }
}
