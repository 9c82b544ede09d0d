//! Whether each chat network takes the account of its channel: asked, not concluded, in the way in which a channel would.

use std::time::Duration;

use quell_surfaces::channels::config::ChannelConfig;
use quell_surfaces::channels::network;

use super::Setup;
use super::finding::Finding;

/// A person waits for this, and chat networks are further away than models on this machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Each configured channel.
pub(super) fn channels(setup: &Setup<'_>) -> Vec<Finding> {
    let configured = &setup.loaded.config.channels;
    if configured.is_empty() {
        return vec![Finding::ok("no chat network is configured")];
    }
    configured.iter().flat_map(|(name, channel)| one(setup, name, channel)).collect()
}

fn one(setup: &Setup<'_>, name: &str, channel: &ChannelConfig) -> Vec<Finding> {
    let page = format!("docs/channels/{}.md", channel.kind.word());
    let network = match network(name, channel) {
        Ok(network) => network,
        Err(bad) => {
            return vec![Finding::fail(
                bad.to_string(),
                format!("correct [channels.{name}], or what it names; see {page}"),
            )];
        }
    };
    let asked = async { tokio::time::timeout(PATIENCE, network.probe()).await };
    let mut findings = vec![match setup.runtime.block_on(asked) {
        Ok(Ok(account)) => Finding::ok(format!("{name}: {account}")),
        Ok(Err(trouble)) => Finding::fail(
            format!("{name}: {trouble}"),
            format!("check the account and the address of [channels.{name}]; {page} says what to create there"),
        ),
        Err(_elapsed) => Finding::fail(
            format!("{name}: no answer within {} s", PATIENCE.as_secs()),
            format!("look whether the server of [channels.{name}] is well and the network is up"),
        ),
    }];
    if channel.allow.is_empty() && channel.operators.is_empty() {
        findings.push(Finding::warn(
            format!("{name}: nobody may write there, because allow is empty"),
            format!(
                "allow = [\"...\"] in [channels.{name}], with the network's ids of people; {page} says how to find them"
            ),
        ));
    }
    findings
}
