//! Agents in chat networks, with the real binary, real HTTP to a scripted model, and networks of the testkit: what people write
//! there, and what they see.

mod discord;
mod irc;
mod matrix;
mod operations;
mod remembered;
mod slack;
mod telegram;
mod webhook;

use std::time::Duration;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Daemon, Home};
use tokio::time::timeout;

use crate::cli::exe;
use crate::harness::Claim;

/// How soon a model's socket is closed after a stop. The contract is 5 ms; a loaded machine gets more, and the bench measures.
const CLOSED_WITHIN: Duration = Duration::from_millis(500);
/// How long a test waits. It decides only how late a failing one fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// A model and a daemon with one channel.
struct House {
    model: ScriptedModel,
    daemon: Daemon,
    claim: Claim,
}

impl House {
    /// With this `[channels.X]`, whose token is in `TOKEN`. The claim was there before the network was: it is in this process.
    async fn open(claim: Claim, channel: &str, token: &str) -> Self {
        Self::with_tokens(claim, channel, &[("TOKEN", token)]).await
    }

    /// With tokens by the names of their variables.
    async fn with_tokens(claim: Claim, channel: &str, tokens: &[(&str, &str)]) -> Self {
        let model = ScriptedModel::start().await;
        let home = Home::new(&config(&model, channel));
        let home = tokens.iter().fold(home, |home, (name, token)| home.env(name, token));
        let daemon = home.start(exe()).await;
        Self { model, daemon, claim }
    }
}

/// How often a channel has lost its connection, or found none.
fn losses(house: &House) -> usize {
    house.daemon.output().matches("channel lost").count()
}

/// Waits until a channel has lost its connection more often than that.
async fn loses(house: &House, more_than: usize) {
    let http = house.daemon.http();
    let looking = async {
        while losses(house) <= more_than {
            // Each look waits for an answer of the daemon, so that it is not looked as fast as can be.
            let runs = http.get("/api/runs").await.expect_status(200);
            assert!(runs["items"].is_array(), "{runs}");
        }
    };
    let seen = timeout(PATIENCE, looking).await;
    assert!(seen.is_ok(), "no connection was lost: {}", house.daemon.output());
}

fn config(model: &ScriptedModel, channel: &str) -> String {
    format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n\
         [agents.main]\nmodel = \"scripted/m\"\n{channel}\n",
        model.base_url()
    )
}
