//! Test support: agents with vision in each dialect, and one without.

use crate::prelude::*;

/// An agent with vision in each dialect, and one without vision. All share a work directory.
pub const OPENAI_AGENT: &str = "seeing";
pub const ANTHROPIC_AGENT: &str = "claude";
pub const TEXT_ONLY_AGENT: &str = "main";

pub fn add_seeing_agents(config: &mut EngineConfig) {
    add_anthropic_provider(config);
    let workdir = Some(config.work_dir.join("main"));
    let seeing = AgentConfig { vision: true, workdir, ..config.agents[&parse_agent_id(TEXT_ONLY_AGENT)].clone() };
    let claude = AgentConfig { model: "anthropic/claude".into(), ..seeing.clone() };
    config.agents.extend([(parse_agent_id(OPENAI_AGENT), seeing), (parse_agent_id(ANTHROPIC_AGENT), claude)]);
}

pub async fn run_message(test: &TestEngine, who: &str, text: &str) -> RunView {
    let run = test.send(Submission { agent: Some(parse_agent_id(who)), ..submission("s", text) }).await;
    test.wait_ended(&run).await
}
