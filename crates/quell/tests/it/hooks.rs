//! Lifecycle hooks with real commands, a real HTTP receiver and the real daemon: what they are told, what they may refuse, and
//! that none of them holds up a stop or a shutdown.

mod commands;
mod daemon;
mod embedded;
mod examples;
mod messages;
mod receiver;
mod runs;
mod webhooks;

use std::path::Path;
use std::time::Duration;

use quell_engine::clock::Clock;
use quell_engine::hooks::{Happening, HookSettings, Veto};
use quell_engine::scope::{Probe, Scope};
use quell_kernel::StopTimes;
use quell_protocol::hook::{HookEvent, SessionFacts};
use quell_testkit::commands::Marker;
use quell_testkit::leaks;
use serde_json::Value;

use crate::harness::{Claim, House, PATIENCE, agent, key};

/// A house with these hooks.
async fn house(change: impl FnOnce(&mut HookSettings)) -> House {
    House::with(Claim::shared().await, |config| change(&mut config.hooks)).await
}

/// A house whose commands would have a minute from SIGTERM on: what is killed at once does not wait for that.
async fn patient_house(change: impl FnOnce(&mut HookSettings)) -> House {
    let minute = Duration::from_secs(60);
    House::with(Claim::shared().await, |config| {
        config.stop = StopTimes { term: minute, grace: 2 * minute, ..config.stop };
        change(&mut config.hooks);
    })
    .await
}

/// What the session's life tells of a session.
fn session(name: &str) -> SessionFacts {
    SessionFacts {
        key: key(name),
        agent: agent("main"),
        user_id: Some("u-1".to_owned()),
        chat_id: Some("c-1".to_owned()),
        provider: Some("openai".to_owned()),
        revived: Some(false),
    }
}

fn scope() -> Scope {
    Scope::new(Clock::start(), Probe::default())
}

/// Asks whether a session may be made, as the session's life does.
async fn may_be_made(house: &House, name: &str) -> Result<(), Veto> {
    let scope = scope();
    let asked = house.engine.hooks().ask(Happening::of_session(HookEvent::Create, session(name)), &scope);
    let answer = tokio::time::timeout(PATIENCE, asked).await.expect("a hook holds the session up").unwrap();
    tokio::time::timeout(PATIENCE, scope.close()).await.expect("something of a hook is still held");
    answer
}

/// The lines that hooks have written to a file, once there are this many.
async fn lines(file: &Path, count: usize) -> Vec<String> {
    let path = file.to_owned();
    let read = move || std::fs::read_to_string(&path).unwrap_or_default().lines().map(str::to_owned).collect();
    let look = read.clone();
    leaks::settled(PATIENCE, move || {
        let found: Vec<String> = look();
        if found.len() >= count { Ok(()) } else { Err(format!("{} lines, not {count}: {found:?}", found.len())) }
    })
    .await;
    read()
}

/// The bodies that hooks have written to a file, one in a line.
async fn bodies(file: &Path, count: usize) -> Vec<Value> {
    lines(file, count).await.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A command that adds its standard input to a file, as one line.
fn keeps_in(file: &Path) -> String {
    format!("{{ cat; echo; }} >> '{}'", file.display())
}

/// A command that hears no signal, like its child in a session of its own, and says in the file `deaf` that it is so.
fn deaf_with_child(mark: &Marker) -> String {
    let mark = mark.as_str();
    format!("export QUELL_TEST_MARK={mark}; trap '' TERM INT HUP; setsid sleep 600 & : > deaf; sleep 600")
}

/// Waits until that command is at work.
async fn is_deaf(house: &House, mark: &Marker) {
    let file = house.dir.path().join("deaf");
    leaks::settled(PATIENCE, move || if file.exists() { Ok(()) } else { Err("it is not deaf yet".to_owned()) }).await;
    mark.at_least(2).await;
}

/// Far less than what would be waited for without an end, and enough for a busy machine.
const SOON: Duration = Duration::from_secs(20);
