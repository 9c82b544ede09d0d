//! A day of ten thousand sessions in a few seconds: time is skipped, nobody sleeps. What lives at its end is what a plain model of
//! the rules says.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use quell_engine::dispatch::Got;
use quell_testkit::leaks;

use super::{Around, Scene, request};
use crate::harness::{PATIENCE, alice};

const SESSIONS: usize = 10_000;
/// Five minutes, as the sweeper does it.
const SWEEP: Duration = Duration::from_secs(300);
const SWEEPS: usize = 24 * 3600 / 300;
/// More than six sweeps after its last use a session is gone.
const IDLE: Duration = Duration::from_secs(1800);

/// Which sessions are used in the time before a sweep: each is created in its turn, touched twice within half an hour, and
/// every third one comes back some hours later.
fn used_in(beat: usize) -> Vec<usize> {
    let first_use = |session: usize| session * (SWEEPS - 60) / SESSIONS;
    let is_used = |session: &usize| {
        let first = first_use(*session);
        let later = [0, 3, 5];
        later.iter().any(|after| first + after == beat) || (session.is_multiple_of(3) && first + 50 == beat)
    };
    (0..SESSIONS).filter(is_used).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_simulated_day_leaves_what_the_rules_say() {
    let scene = Scene::with(Around { names: vec!["a"], ..Around::default() }, |_| {}).await;
    let engine = &scene.house.engine;
    // The model: when each was used last, while it lives.
    let mut lives: HashMap<usize, Duration> = HashMap::new();
    let (mut now, mut created, mut revived, mut expired, mut most) = (Duration::ZERO, 0, 0, 0, 0);
    let (before, mut largest) = (resident_kib(), 0);
    for beat in 0..SWEEPS {
        let used = used_in(beat);
        let opened = join_all(used.iter().map(|session| {
            let asked = request("user", &session.to_string());
            async move { engine.open_session(&alice(), asked).await.unwrap().1 }
        }))
        .await;
        created += opened.iter().filter(|got| **got == Got::Created).count();
        revived += used.iter().filter(|session| !lives.contains_key(*session)).count();
        lives.extend(used.into_iter().map(|session| (session, now)));
        most = most.max(lives.len());
        largest = largest.max(resident_kib());
        scene.pass(SWEEP);
        now += SWEEP;
        // A little real time goes by, too, so that exactly the limit is over it.
        let before = lives.len();
        lives.retain(|_, used| now - *used < IDLE);
        expired += before - lives.len();
        assert_eq!(engine.live_sessions(), lives.len(), "after {now:?}");
    }
    println!("{created} created, {} revived, {expired} expired, at most {most} at once", revived - created);
    // The whole process with its test: `cargo xtask bench sessions` measures what one session costs.
    println!("resident: {before} KiB before, {largest} at the most, {} at the end", resident_kib());
    assert_eq!(created, SESSIONS);
    assert!(revived > created && expired == revived - lives.len());
    scene.alive(lives.len()).await;
    // The last ones go, and nothing is left of anybody.
    scene.pass(IDLE + SWEEP);
    assert_eq!(engine.live_sessions(), 0);
    scene.alive(0).await;
    let mcp = engine.clone();
    leaks::settled(PATIENCE, move || if mcp.mcp().alive() == 0 { Ok(()) } else { Err("MCP".to_owned()) }).await;
    scene.house.close().await;
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}
