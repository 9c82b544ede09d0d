//! Check that each chat network accepts its configured account, by a real request.

use std::time::Duration;

use quell_channels::config::ChannelConfig;
use quell_channels::create_network;

use super::ConfiguredInput;
use super::finding::DoctorFinding;
use crate::runtime::block_on;

/// A person waits for this; chat networks answer more slowly than models on this machine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn channels(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let configured = &input.loaded.config.channels;
    if configured.is_empty() {
        return vec![DoctorFinding::ok("no chat network is configured")];
    }
    configured.iter().flat_map(|(name, channel)| check_channel(input, name, channel)).collect()
}

fn check_channel(input: &ConfiguredInput<'_>, name: &str, channel: &ChannelConfig) -> Vec<DoctorFinding> {
    let page = format!("docs/channels/{}.md", channel.kind.as_str());
    let network = match create_network(name, channel) {
        Ok(network) => network,
        Err(bad) => {
            return vec![DoctorFinding::fail(
                bad.to_string(),
                format!("correct [channels.{name}], or what it names; see {page}"),
            )];
        }
    };
    let probe = async { tokio::time::timeout(PROBE_TIMEOUT, network.probe()).await };
    let mut findings = vec![match block_on(&input.base.runtime, probe) {
        Ok(Ok(account)) => DoctorFinding::ok(format!("{name}: {account}")),
        Ok(Err(trouble)) => DoctorFinding::fail(
            format!("{name}: {trouble}"),
            format!("check the account and the address of [channels.{name}]; {page} says what to create there"),
        ),
        Err(_elapsed) => DoctorFinding::fail(
            format!("{name}: no answer within {} s", PROBE_TIMEOUT.as_secs()),
            format!("look whether the server of [channels.{name}] is well and the network is up"),
        ),
    }];
    if channel.allow.is_empty() && channel.operators.is_empty() {
        findings.push(DoctorFinding::warn(
            format!("{name}: nobody may write there, because allow is empty"),
            format!(
                "allow = [\"...\"] in [channels.{name}], with the network's ids of people; {page} says how to find them"
            ),
        ));
    }
    findings
}
