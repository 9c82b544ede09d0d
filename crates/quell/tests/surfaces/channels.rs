//! Agents in chat networks with the real binary, a scripted model and the networks of the testkit.

mod administration;
mod coding_task;
mod draft_networks;
mod irc;
mod matrix;
mod sender_memory;
mod telegram;
mod webhook;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{DaemonHome, TestDaemon};

use crate::test_daemon::{config_toml, quell_exe};
use crate::test_engine::ProcessLock;

struct ChannelDaemonFixture {
    model: ScriptedModel,
    daemon: TestDaemon,
    _process_lock: ProcessLock,
}

impl ChannelDaemonFixture {
    /// Starts a daemon with this `[channels.X]`, whose token is in `TOKEN`. The caller takes the process lock before it
    /// starts the network, which runs in this process.
    async fn start(process_lock: ProcessLock, channel: &str, token: &str) -> Self {
        Self::start_with_tokens(process_lock, channel, &[("TOKEN", token)]).await
    }

    /// As `start`, with tokens by the names of their variables.
    async fn start_with_tokens(process_lock: ProcessLock, channel: &str, tokens: &[(&str, &str)]) -> Self {
        let model = ScriptedModel::start().await;
        let home = DaemonHome::new(&config_toml(&model, &format!("{channel}\n")));
        let home = tokens.iter().fold(home, |home, (name, token)| home.with_env(name, token));
        let daemon = home.start(quell_exe()).await;
        Self { model, daemon, _process_lock: process_lock }
    }

    /// Checks that this model request tells of the stop before it.
    async fn assert_stop_told(&self, request: usize) {
        self.model.assert_histories_valid();
        let request = self.model.request_at(request).wait_arrived().await;
        assert!(request.body.to_string().contains("was stopped on purpose by the user"), "{}", request.body);
    }
}
