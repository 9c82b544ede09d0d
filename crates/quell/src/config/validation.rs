//! Validate a parsed configuration across its sections.

use quell_channels::config::ChannelConfig;
use quell_engine::agent::{
    AgentConfig, RESERVED, check_sandbox, check_tool_names, thinking_unsupported, web_search_unsupported,
};
use quell_engine::engine::Retention;
use quell_engine::memory::MemorySettings;
use quell_engine::schedules::ScheduleSettings;
use quell_kernel::agent_tree::{AgentTree, AgentTreeError};
use quell_kernel::schedule::check_zone;
use quell_llm::ProviderKind;
use quell_protocol::AgentId;
use quell_server::host_entry_problem;

use super::environment::home_dir;
use super::{Config, variable_names};

/// More notes would make each one less useful.
const MAX_RECALL_LIMIT: usize = 50;

/// An empty database already has a few MiB.
const MIN_DATABASE_MIB: u64 = 16;

pub(super) struct ConfigProblem {
    pub(super) key: String,
    pub(super) text: String,
}

/// Finds all problems, in the order of the file's sections.
pub(super) fn find_problems(config: &Config) -> Vec<ConfigProblem> {
    let mut found: Vec<ConfigProblem> = variable_names::find_problems(config).chain(config.store.problem()).collect();
    found.extend(config.cluster.as_ref().and_then(|cluster| cluster.problem(config.store.is_postgres())));
    let mut report = |key: &str, text: String| found.push(ConfigProblem { key: key.to_owned(), text });
    let stop = &config.stop;
    if stop.grace_ms <= stop.term_ms.saturating_add(500) {
        let text =
            format!("{} is too short; it must be more than term_ms + 500 = {}", stop.grace_ms, stop.term_ms + 500);
        report("stop.grace_ms", text);
    }
    if stop.hard_ms == 0 {
        report("stop.hard_ms", "0 would give up at once; the default is 5000".to_owned());
    }
    for (key, seconds) in
        [("sessions.sweep_s", config.sessions.sweep_s), ("sessions.cleanup_s", config.sessions.cleanup_s)]
    {
        if seconds == 0 {
            report(key, "0 leaves no time; the least is 1".to_owned());
        }
    }
    for key in zero_limits(config) {
        report(key, "0 would let nothing through; leave the key out for the default".to_owned());
    }
    found.extend(section_problems(config));
    let mut report = |key: &str, text: String| found.push(ConfigProblem { key: key.to_owned(), text });
    for (name, server) in &config.mcp {
        let key = |key: &str| if key.is_empty() { format!("mcp.{name}") } else { format!("mcp.{name}.{key}") };
        if let Err(bad) = server.check(name) {
            report(&key(bad.key), bad.problem);
        }
        if server.grace_ms.is_some_and(|grace| grace >= stop.grace_ms) {
            let text = format!("is too long; it must be less than [stop] grace_ms = {}", stop.grace_ms);
            report(&key("grace_ms"), text);
        }
    }
    for (name, provider) in &config.providers {
        if let Err((key, text)) = provider.check() {
            report(&format!("providers.{name}.{key}"), text);
        }
    }
    agent_problems(config, &mut report);
    found
}

fn agent_problems(config: &Config, report: &mut impl FnMut(&str, String)) {
    let home = home_dir();
    let tree = AgentTree::new(config.agents.iter().map(|(id, agent)| (id, agent.parent.as_ref())));
    for (id, agent) in &config.agents {
        let key = format!("agents.{id}.model");
        for model in agent.model.names() {
            match model.split_once('/').map(|(provider, _)| provider) {
                None => report(&key, format!("{model:?} must be PROVIDER/MODEL")),
                Some(provider) if provider != "demo" && !config.providers.contains_key(provider) => {
                    report(&key, format!("there is no [providers.{provider}] for {model:?}"));
                }
                Some(_) => {}
            }
        }
        if let Some(text) = agent.thinking_problem().or_else(|| thinking_kind_problem(config, agent)) {
            let key = if agent.thinking_tokens.is_some() { "thinking_tokens" } else { "thinking" };
            report(&format!("agents.{id}.{key}"), text);
        }
        if let Some(text) = web_search_problem(config, agent) {
            report(&format!("agents.{id}.web_search"), text);
        }
        if let Err(unknown) = check_tool_names(&agent.tools, config.mcp.keys()) {
            report(&format!("agents.{id}.tools"), unknown.to_string());
        }
        let approvals: Vec<String> = agent.approvals.keys().cloned().collect();
        if let Err(unknown) = check_tool_names(&approvals, config.mcp.keys()) {
            report(&format!("agents.{id}.approvals"), unknown.to_string());
        }
        if let Err((key, text)) = check_sandbox(agent, config.tools.unconfined, home.as_deref()) {
            report(&format!("agents.{id}.{key}"), text);
        }
        if let Some(server) = agent.mcp.iter().flatten().find(|server| !config.mcp.contains_key(*server)) {
            report(&format!("agents.{id}.mcp"), format!("there is no [mcp.{server}]"));
        }
        if let Some(text) = agent.skills_problem() {
            report(&format!("agents.{id}.skills"), text);
        }
        if agent.shell_timeout_s == 0 {
            report(&format!("agents.{id}.shell_timeout_s"), "must be at least 1".to_owned());
        }
        if let Some(text) = agent.quorum_problem() {
            report(&format!("agents.{id}.approval_quorum"), text);
        }
        if let Some((key, text)) = agent.daily_limit().problem() {
            report(&format!("agents.{id}.{key}"), text);
        }
        if let Some(text) = parent_problem(&tree, id, agent) {
            report(&format!("agents.{id}.parent"), text);
        }
        if let Some(unknown) = agent.delegates.iter().flatten().find(|other| !config.agents.contains_key(*other)) {
            report(&format!("agents.{id}.delegates"), format!("there is no [agents.{unknown}]"));
        }
        if RESERVED.contains(&id.as_str()) {
            let problem = format!("{id:?} has a meaning of its own; name the agent otherwise");
            report(&format!("agents.{id}"), problem);
        }
    }
}

fn zero_limits(config: &Config) -> impl Iterator<Item = &'static str> {
    let limits = &config.limits;
    let all = [
        ("limits.in_flight_runs", limits.in_flight_runs == 0),
        ("limits.max_steps", limits.max_steps == 0),
        ("limits.request_body_bytes", limits.request_body_bytes == 0),
        ("limits.import_bytes", limits.import_bytes == 0),
        ("limits.parallel_calls", limits.parallel_calls == 0),
        ("limits.tool_output_bytes", limits.tool_output_bytes == 0),
        ("limits.run_timeout_s", limits.run_timeout_s == 0),
        ("server.max_connections", config.server.max_connections == 0),
        ("server.max_unauthenticated_per_peer", config.server.max_unauthenticated_per_peer == 0),
        ("server.bad_tokens_per_minute", config.server.bad_tokens_per_minute == 0),
    ];
    all.into_iter().filter_map(|(key, is_zero)| is_zero.then_some(key))
}

/// Finds problems of sections that do not depend on others.
fn section_problems(config: &Config) -> Vec<ConfigProblem> {
    let hooks = config.hooks.check().err();
    let hooks = hooks.map(|bad| ConfigProblem { key: format!("hooks.{}", bad.key), text: bad.problem });
    let mut found: Vec<ConfigProblem> = hooks.into_iter().collect();
    let bad_host = config.server.allowed_hosts.iter().find_map(|name| host_entry_problem(name));
    found.extend(bad_host.map(|text| ConfigProblem { key: "server.allowed_hosts".to_owned(), text }));
    memory_problems(&config.memory, &mut |key, text| found.push(ConfigProblem { key: key.to_owned(), text }));
    schedule_problems(&config.schedules, &mut |key, text| found.push(ConfigProblem { key: key.to_owned(), text }));
    found.extend(retention_problems(&config.retention));
    found.extend(
        config.messages.first_problem().map(|(key, text)| ConfigProblem { key: format!("messages.{key}"), text }),
    );
    if config.providers.contains_key("agent") {
        let text = "clients of the standard APIs name agents as agent/ID; name the provider otherwise".to_owned();
        found.push(ConfigProblem { key: "providers.agent".to_owned(), text });
    }
    found.extend(config.routing.problems(&config.providers));
    found.extend(config.channels.iter().filter_map(|(name, channel)| channel_problem(config, name, channel)));
    found
}

/// Checks a channel's own keys, and that its agent exists. Without any `[agents]` section there is `main`. An agent
/// that was created at run time does not count: if it were deleted, the unchanged file would become invalid.
fn channel_problem(config: &Config, name: &str, channel: &ChannelConfig) -> Option<ConfigProblem> {
    let key = |key: &str| if key.is_empty() { format!("channels.{name}") } else { format!("channels.{name}.{key}") };
    if let Err(bad) = channel.validate(name) {
        return Some(ConfigProblem { key: key(bad.key), text: bad.problem });
    }
    if let Some((voice_key, model)) = unknown_voice_model(config, channel) {
        let text =
            format!("no provider serves the model {model:?}; models are named provider/model, with a [providers.X]");
        return Some(ConfigProblem { key: key(voice_key), text });
    }
    let agent = channel.agent.as_ref()?;
    let is_there = config.agents.contains_key(agent) || (config.agents.is_empty() && agent.as_str() == "main");
    let text = || format!("there is no [agents.{agent}]; the agent of a channel stands in this file, too");
    (!is_there).then(|| ConfigProblem { key: key("agent"), text: text() })
}

/// A model of the channel's voice rule that no configured provider has.
fn unknown_voice_model<'a>(config: &Config, channel: &'a ChannelConfig) -> Option<(&'static str, &'a str)> {
    let is_known = |model: &str| {
        let parts = model.split_once('/').filter(|(_, name)| !name.is_empty());
        parts.is_some_and(|(provider, _)| config.providers.contains_key(provider))
    };
    channel.voice.iter().flat_map(|voice| voice.models()).find(|(_, model)| !is_known(model))
}

/// Treats limits that would delete everything as mistakes.
fn retention_problems(retention: &Retention) -> Vec<ConfigProblem> {
    let days = |key, days: Option<u32>| (key, days.map(u64::from), 1, "would throw away everything at once");
    [
        days("max_age_days", retention.max_age_days),
        ("max_sessions", retention.max_sessions, 1, "would throw away everything at once"),
        ("max_mib", retention.max_mib, MIN_DATABASE_MIB, "is too little; the database holds more than sessions"),
        ("responses_mib", Some(retention.responses_mib), 1, "would keep no response"),
        days("audit_days", Some(retention.audit_days)),
    ]
    .into_iter()
    .filter_map(|(key, value, least, text)| {
        let value = value.filter(|value| *value < least)?;
        let text = format!("{value} {text}; the least is {least}");
        Some(ConfigProblem { key: format!("retention.{key}"), text })
    })
    .collect()
}

fn parent_problem(tree: &AgentTree<'_>, id: &AgentId, agent: &AgentConfig) -> Option<String> {
    match tree.check_ancestors(id).err()? {
        AgentTreeError::Unknown(parent) if agent.parent.as_ref() == Some(&parent) => {
            Some(format!("there is no [agents.{parent}]"))
        }
        // Only the child of the unknown parent reports it.
        AgentTreeError::Unknown(_) => None,
        bad @ (AgentTreeError::Circle(_) | AgentTreeError::TooDeep) => Some(bad.to_string()),
    }
}

fn schedule_problems(schedules: &ScheduleSettings, report: &mut impl FnMut(&str, String)) {
    if let Err(error) = check_zone(&schedules.timezone) {
        report("schedules.timezone", error.to_string());
    }
    if schedules.min_interval_s == 0 {
        report("schedules.min_interval_s", "0 must be at least 1; the default is 60".to_owned());
    }
}

fn memory_problems(memory: &MemorySettings, report: &mut impl FnMut(&str, String)) {
    let least = memory.min_relevance_score;
    if !(0.0..=1.0).contains(&least) {
        report("memory.min_relevance_score", format!("{least} must be from 0 to 1; the default is 0.4"));
    }
    let limit = memory.recall_limit;
    if !(1..=MAX_RECALL_LIMIT).contains(&limit) {
        report("memory.recall_limit", format!("{limit} must be from 1 to {MAX_RECALL_LIMIT}; the default is 5"));
    }
}

/// Checks settings that only some kinds of providers support. An unknown provider is reported elsewhere.
fn thinking_kind_problem(config: &Config, agent: &AgentConfig) -> Option<String> {
    agent.thinking_mode()?;
    let (provider, _) = agent.model.first().split_once('/')?;
    let provider = config.providers.get(provider)?;
    (!provider.kind.has_thinking()).then(thinking_unsupported)
}

/// The first model must be one whose provider can search; those that take over may go without.
fn web_search_problem(config: &Config, agent: &AgentConfig) -> Option<String> {
    let (provider, _) = agent.model.first().split_once('/')?;
    let kind = match config.providers.get(provider) {
        Some(provider) => provider.kind,
        None if provider == "demo" => ProviderKind::DEMO,
        None => return None,
    };
    (agent.web_search && !kind.has_web_search()).then(web_search_unsupported)
}
