//! What a run may do at the most: what the run that started it could, with the agent as it was there.

use quell_kernel::rights::{Isolation, Rights, lists};

use super::{Agent, AgentConfig};
use crate::proc::Isolate;

/// The tool that stands for the files which an answer in a chat names. It is no call: a model writes markers.
pub const SEND_FILE: &str = "send_file";

impl AgentConfig {
    /// What it may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        let isolation = match self.isolate {
            Isolate::None => Isolation::None,
            Isolate::Auto => Isolation::Preferred,
            Isolate::Pid => Isolation::Required,
        };
        let (tools, servers, approvals) = (self.tools.clone(), self.mcp.clone(), self.approvals.clone());
        Rights { tools, servers, approvals, isolation }
    }

    /// True when its tool list has this tool.
    #[must_use]
    pub fn has_tool(&self, tool: &str) -> bool {
        lists(&self.tools, tool)
    }
}

impl Agent {
    /// This agent within the bounds of the run that starts it. Its workdir stays its own: giving it work is how its files are
    /// reached.
    #[must_use]
    pub fn within(&self, ceiling: &Rights) -> Self {
        let Rights { tools, servers, approvals, isolation } = self.config.rights().within(ceiling);
        let isolate = match isolation {
            Isolation::None => Isolate::None,
            Isolation::Preferred => Isolate::Auto,
            Isolation::Required => Isolate::Pid,
        };
        let specs = self.tools.iter().filter(|spec| lists(&tools, &spec.name)).cloned().collect();
        let config = AgentConfig { tools, mcp: servers, approvals, isolate, ..self.config.clone() };
        Self { config, tools: specs, ..self.clone() }
    }
}
