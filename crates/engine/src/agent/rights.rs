//! What a run may do at the most: what the run that started it could, with the agent as it was there.

use quell_kernel::rights::{Isolation, Rights, lists};

use super::{Agent, AgentConfig};
use crate::proc::Isolate;

/// The tool that stands for the files which an answer in a chat names. It is no call: a model writes markers.
pub const SEND_FILE: &str = "send_file";

impl AgentConfig {
    /// True when its tool list has this tool.
    #[must_use]
    pub fn has_tool(&self, tool: &str) -> bool {
        lists(&self.tools, tool)
    }
}

impl Agent {
    /// What its runs may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        let config = &self.config;
        let isolation = match config.isolate {
            Isolate::None => Isolation::None,
            Isolate::Auto => Isolation::Preferred,
            Isolate::Pid => Isolation::Required,
        };
        let (tools, servers, approvals) = (config.tools.clone(), config.mcp.clone(), config.approvals.clone());
        Rights { tools, servers, approvals, isolation, own_model: self.own_model }
    }

    /// This agent within the bounds of the run that starts it. Its workdir stays its own: giving it work is how its files are
    /// reached.
    #[must_use]
    pub fn within(&self, ceiling: &Rights) -> Self {
        let Rights { tools, servers, approvals, isolation, own_model } = self.rights().within(ceiling);
        let isolate = match isolation {
            Isolation::None => Isolate::None,
            Isolation::Preferred => Isolate::Auto,
            Isolation::Required => Isolate::Pid,
        };
        let specs = self.tools.iter().filter(|spec| lists(&tools, &spec.name)).cloned().collect();
        let config = AgentConfig { tools, mcp: servers, approvals, isolate, ..self.config.clone() };
        Self { config, tools: specs, own_model, ..self.clone() }
    }
}
