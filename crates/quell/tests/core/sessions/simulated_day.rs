//! Ten thousand sessions over a simulated day, in a few seconds of real time. The live sessions are compared with a
//! simple model of the rules.

use std::collections::HashMap;

use super::*;

const SESSIONS: usize = 10_000;
/// Five minutes, like the daemon's own sweeper.
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);
const SWEEPS: usize = 24 * 3600 / 300;
/// A session expires at the sweep after more than this time without use.
const IDLE_LIMIT: Duration = Duration::from_secs(1800);

/// The sessions that are used before this sweep: each one at its creation and twice within the next half hour, and
/// every third one again some hours later.
fn sessions_used_in(sweep: usize) -> Vec<usize> {
    let first_use = |session: usize| session * (SWEEPS - 60) / SESSIONS;
    let is_used = |session: &usize| {
        let first = first_use(*session);
        let later = [0, 3, 5];
        later.iter().any(|after| first + after == sweep) || (session.is_multiple_of(3) && first + 50 == sweep)
    };
    (0..SESSIONS).filter(is_used).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_simulated_day_leaves_what_the_rules_say() {
    let fixture = SessionFixture::start().await;
    let engine = &fixture.engine;
    // The model: the time of last use of each live session.
    let mut live: HashMap<usize, Duration> = HashMap::new();
    let (mut now, mut created, mut revived, mut expired) = (Duration::ZERO, 0, 0, 0);
    for sweep in 0..SWEEPS {
        let used = sessions_used_in(sweep);
        let opened = join_all(used.iter().map(|session| {
            let asked = session_request("user", &session.to_string());
            async { fixture.open(asked).await.unwrap().1 }
        }))
        .await;
        created += opened.iter().filter(|outcome| **outcome == OpenSessionOutcome::Created).count();
        revived += used.iter().filter(|session| !live.contains_key(*session)).count();
        live.extend(used.into_iter().map(|session| (session, now)));
        fixture.advance_time(SWEEP_INTERVAL);
        now += SWEEP_INTERVAL;
        // Some real time passes, too, so a session that is exactly at the limit has expired.
        let before = live.len();
        live.retain(|_, used| now - *used < IDLE_LIMIT);
        expired += before - live.len();
        assert_eq!(engine.count_live_sessions(), live.len(), "after {now:?}");
    }
    assert_eq!(created, SESSIONS);
    assert!(revived > created && expired == revived - live.len());
    fixture.wait_alive(live.len()).await;
    // The last sessions expire, and nothing is left.
    fixture.advance_time(IDLE_LIMIT + SWEEP_INTERVAL);
    assert_eq!(engine.count_live_sessions(), 0);
    fixture.wait_alive(0).await;
    let mcp = engine.clone();
    leaks::wait_for_value("live MCP servers", 0, move || mcp.mcp().count_live()).await;
    fixture.close().await;
}
