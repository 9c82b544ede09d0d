//! The permissions of an agent's runs, and an agent restricted to those of the run that starts it.

use quell_kernel::permissions::{Isolation, RunPermissions, contains_tool};
use quell_process::Isolate;
use quell_tools::AgentFacts;

use super::tools::tool_specs;
use super::{Agent, AgentConfig};

impl AgentConfig {
    /// True if its tool list has this tool.
    #[must_use]
    pub fn has_tool(&self, tool: &str) -> bool {
        contains_tool(&self.tools, tool)
    }
}

impl Agent {
    pub fn permissions(&self) -> RunPermissions {
        let config = &self.config;
        let isolation = match config.isolate {
            Isolate::None => Isolation::None,
            Isolate::Auto => Isolation::Preferred,
            Isolate::Pid => Isolation::Required,
        };
        let (tools, servers, approvals) = (config.tools.clone(), config.mcp.clone(), config.approvals.clone());
        let (approval_quorum, sandbox, own_model) = (config.approval_quorum, self.sandbox.clone(), self.own_model);
        let web_search = config.web_search;
        RunPermissions { tools, servers, approvals, approval_quorum, isolation, sandbox, web_search, own_model }
    }

    /// False where it would run as the user of the daemon, and the run that starts it does not.
    #[must_use]
    pub fn can_be_called_within(&self, max_permissions: &RunPermissions) -> bool {
        self.sandbox.user.is_some() || max_permissions.sandbox.user.is_none()
    }

    /// This agent, restricted to the permissions of the run that starts it. It keeps its own workdir, because delegated
    /// work may need its files.
    #[must_use]
    pub fn restricted_to(&self, max_permissions: &RunPermissions) -> Self {
        let RunPermissions { tools, servers, approvals, approval_quorum, isolation, sandbox, web_search, own_model } =
            self.permissions().restricted_by(max_permissions);
        let isolate = match isolation {
            Isolation::None => Isolate::None,
            Isolation::Preferred => Isolate::Auto,
            Isolation::Required => Isolate::Pid,
        };
        let facts = AgentFacts {
            shell_timeout_s: self.config.shell_timeout_s,
            sandbox: Some(sandbox.mode),
            may_escalate: sandbox.may_leave(),
            ..AgentFacts::default()
        };
        let tool_specs = tool_specs(&tools, &facts).into();
        let config =
            AgentConfig { tools, mcp: servers, approvals, approval_quorum, isolate, web_search, ..self.config.clone() };
        Self { config, tool_specs, sandbox, own_model, ..self.clone() }
    }
}
