//! Lifecycle hooks with real commands, a real HTTP receiver and the real daemon: their input, their answers, and that
//! none of them delays a stop or a shutdown.

mod commands;
mod daemon;
mod examples;
mod messages;
mod push;
mod runs;
mod webhooks;

use std::time::Instant;

use quell_engine::hooks::{HookSettings, HookTrigger, Hooks, MessageAnswer, Veto};
use quell_kernel::StopTimeouts;
use quell_protocol::hook::{HookBody, HookEvent, SessionFacts};
use quell_scope::clock::Clock;
use quell_scope::{Cancelled, Interrupted, PointProbe, Scope};
use quell_test_support::hook_receiver::{HookReceiver, HookReceiverReply, SECRET};

use crate::prelude::*;
use crate::test_server::assert_fields;

async fn start_engine(change: impl FnOnce(&mut HookSettings)) -> TestEngine {
    TestEngine::start_with(ProcessLock::shared().await, |config| change(&mut config.hooks)).await
}

/// Starts an engine with a term grace of one minute. A test that ends sooner shows that a process was killed at once.
async fn start_engine_with_long_grace(change: impl FnOnce(&mut HookSettings)) -> TestEngine {
    let minute = Duration::from_secs(60);
    TestEngine::start_with(ProcessLock::shared().await, |config| {
        config.stop_timeouts = StopTimeouts { term: minute, grace: 2 * minute, ..config.stop_timeouts };
        change(&mut config.hooks);
    })
    .await
}

/// The facts of a session as its lifecycle reports them.
fn session_facts(name: &str) -> SessionFacts {
    SessionFacts {
        key: parse_session_key(name),
        agent: parse_agent_id("main"),
        user_id: Some("u-1".to_owned()),
        chat_id: Some("c-1".to_owned()),
        provider: Some("openai".to_owned()),
        revived: Some(false),
    }
}

fn session_trigger(event: HookEvent, session: &str) -> HookTrigger {
    HookTrigger::for_session(event, session_facts(session))
}

fn new_scope() -> Scope {
    Scope::new(Clock::start(), PointProbe::default())
}

/// Runs the `on_create` hooks as the session lifecycle does.
async fn ask_create_hook(test: &TestEngine, name: &str) -> Result<(), Veto> {
    let scope = new_scope();
    let asked = test.engine.hooks().ask_hooks(session_trigger(HookEvent::Create, name), &scope);
    let answer = tokio::time::timeout(WAIT_TIMEOUT, asked).await.expect("a hook delays the session");
    tokio::time::timeout(WAIT_TIMEOUT, scope.close()).await.expect("a hook still holds resources");
    answer.map_err(|why| why.into_failure().unwrap())
}

/// Waits until a file has `count` lines, and returns its lines.
async fn wait_lines(file: &Path, count: usize) -> Vec<String> {
    poll_until(&format!("{count} lines of {}", file.display()), async || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        // A line without its end is still being written.
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned);
        let found: Vec<String> = lines.collect();
        (found.len() >= count).then_some(found)
    })
    .await
}

/// Waits until a file has `count` bodies, one per line, and returns them.
async fn wait_bodies(file: &Path, count: usize) -> Vec<Value> {
    wait_lines(file, count).await.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A command that appends its standard input to a file, as one line.
fn append_stdin_command(file: &Path) -> String {
    format!("{{ cat; echo; }} >> '{}'", file.display())
}

/// A command that ignores signals, with a child in its own process session. It creates the file `deaf` once it ignores
/// them.
fn signal_ignoring_command(marker: &ProcessMarker) -> String {
    let marker = marker.as_str();
    format!("export QUELL_TEST_MARK={marker}; trap '' TERM INT HUP; setsid sleep 600 & : > deaf; sleep 600")
}

/// Waits until that command ignores signals and its child runs.
async fn wait_signals_ignored(test: &TestEngine, marker: &ProcessMarker) {
    let file = test.test_dir.path().join("deaf");
    leaks::wait_for_true("it ignores signals", move || file.exists()).await;
    marker.wait_for_count(2).await;
}

/// Far less than the grace that would apply without an immediate kill, and enough for a busy machine.
const SOON_LIMIT: Duration = Duration::from_secs(20);
