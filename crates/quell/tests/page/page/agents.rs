//! The abort button of an agent is visible exactly while the agent is `waiting_llm` (rows B8 and B10 of
//! docs/design/requirements.md).
//!
//! One test drives the daemon's own agents through statuses with random actions. The other lets a proxy send random
//! sequences of statuses, faster than a daemon would. In both, a mutation observer in the page checks every change of
//! the tree, so no intermediate state is missed.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use super::proxy::PageProxy;
use super::{PageConfig, PageFixture};
use crate::prelude::*;

const STATUSES: [&str; 4] = ["idle", "waiting_llm", "processing", "stopping"];
const AGENTS: [&str; 3] = ["main", "scout", "team/writer"];
const CONFIG: PageConfig<'static> = PageConfig {
    main: "",
    others: &[("scout", "parent = \"main\""), ("team/writer", "parent = \"scout\"")],
    tables: "",
    max_retries: 0,
};

/// Checks the tree after every change and records violations of the rule.
const WATCH_SCRIPT: &str = r"
  window.__broken = [];
  window.__changes = 0;
  const seen = (element) => !!element && element.checkVisibility({ visibilityProperty: true });
  window.__row = (id) => {
    const row = [...document.querySelectorAll('#agents [data-agent]')].find((row) => row.dataset.agent === id);
    const own = (css) => [...row.querySelectorAll(css)].filter((e) => e.closest('[data-agent]') === row).filter(seen);
    const shown = { waiting: '.compute-status.waiting', processing: '.compute-status.processing',
      stopping: '.compute-status.stopping', button: 'button.abort-btn' };
    return row && Object.fromEntries(Object.keys(shown).sort().map((name) => [name, own(shown[name]).length]));
  };
  window.__history = [];
  const look = () => {
    window.__changes += 1;
    const main = JSON.stringify(window.__row('main'));
    if (window.__history.at(-1) !== main) window.__history.push(main);
    for (const { dataset: { agent } } of document.querySelectorAll('#agents [data-agent]')) {
      const row = window.__row(agent);
      if (row.button !== row.waiting || row.waiting + row.processing + row.stopping > 1) {
        window.__broken.push(`${agent}: ${JSON.stringify(row)}`);
      }
    }
  };
  look();
  const tree = document.querySelector('#agents');
  new MutationObserver(look).observe(tree, { subtree: true, childList: true, attributes: true });
";

/// The row of an agent in this status, in the format of the observer.
fn expected_row(status: &str) -> String {
    let one = |wanted: &str| u8::from(status == wanted);
    let [waiting, processing, stopping] = ["waiting_llm", "processing", "stopping"].map(one);
    format!(r#"{{"button":{waiting},"processing":{processing},"stopping":{stopping},"waiting":{waiting}}}"#)
}

async fn wait_row(fixture: &PageFixture, agent: &str, status: &str) {
    fixture.wait_for(&format!("JSON.stringify(window.__row('{agent}')) === '{}'", expected_row(status))).await;
}

/// Fails when the rule was ever broken, and when the observer saw nothing after its first look. How many changes random
/// actions make is left to chance.
async fn assert_rule_held(fixture: &PageFixture) {
    assert_eq!(fixture.eval("window.__broken").await, json!([]));
    assert!(fixture.eval("window.__changes").await.as_u64().unwrap() > 1, "no change was looked at");
}

fn samples<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    // New samples at each run; a failure names the action it failed at.
    let mut runner = TestRunner::new(Config::default());
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_button_is_visible_if_and_only_if_waiting_llm_whatever_the_page_is_told() {
    let Some((fixture, proxy)) = PageFixture::start_behind_proxy(&CONFIG).await else { return };
    fixture.wait_visible("#agents [data-agent='team/writer']").await;
    fixture.run_script(WATCH_SCRIPT, &[]).await;
    let steps = samples((0..AGENTS.len(), 0..STATUSES.len(), prop::bool::weighted(0.7)), 150);
    let mut last = ["idle"; AGENTS.len()];
    for (step, (agent, status, looked_at)) in steps.into_iter().enumerate() {
        proxy.set_agent_status(AGENTS[agent], STATUSES[status]);
        last[agent] = STATUSES[status];
        // Some statuses follow each other without waiting for the page.
        if looked_at {
            println!("step {step}: {} is {}", AGENTS[agent], STATUSES[status]);
            wait_row(&fixture, AGENTS[agent], STATUSES[status]).await;
        }
    }
    for (agent, status) in AGENTS.iter().zip(last) {
        wait_row(&fixture, agent, status).await;
    }
    assert_rule_held(&fixture).await;
    check_stale_list_ignored(&fixture, &proxy).await;
    fixture.assert_no_page_errors(&[]).await;
}

/// A list that was made before an event arrives after it: the status of the event stays.
async fn check_stale_list_ignored(fixture: &PageFixture, proxy: &PageProxy) {
    for (old, new) in [("waiting_llm", "processing"), ("processing", "waiting_llm"), ("stopping", "idle")] {
        proxy.set_agent_status("main", old);
        wait_row(fixture, "main", old).await;
        proxy.hold_lists();
        proxy.set_agent_status("scout", new);
        proxy.wait_list_held().await;
        proxy.set_agent_status("main", new);
        wait_row(fixture, "main", new).await;
        fixture.run_script("window.__history.length = 0; performance.clearResourceTimings();", &[]).await;
        proxy.release_lists();
        // Lists are fetched one after the other: when the second one is here, the first one has been processed.
        proxy.set_agent_status("scout", old);
        let lists = "performance.getEntriesByType('resource').filter(e => e.name.endsWith('/api/agents'))";
        fixture.wait_for(&format!("{lists}.length > 1")).await;
        let history = fixture.eval("window.__history.join('; ')").await;
        assert!(history == "" || history == expected_row(new), "{old} came back over {new}: {history}");
    }
}

#[derive(Debug, Clone, Copy)]
enum AgentAction {
    /// Start a run that waits for the model.
    Wait,
    /// Start a run that works in a tool.
    Work,
    Answer,
    /// Click the abort button, if it is visible.
    Click,
    Stop,
}

fn any_action() -> impl Strategy<Value = (usize, AgentAction)> {
    let actions = prop_oneof![
        3 => Just(AgentAction::Wait),
        2 => Just(AgentAction::Work),
        2 => Just(AgentAction::Answer),
        2 => Just(AgentAction::Click),
        1 => Just(AgentAction::Stop),
    ];
    (0..AGENTS.len(), actions)
}

/// What an agent does in its session, and the gate at which its model waits.
type AgentActivity = (&'static str, String);

#[tokio::test(flavor = "multi_thread")]
async fn the_button_is_visible_if_and_only_if_waiting_llm_whatever_agents_do() {
    let Some(fixture) = PageFixture::start_signed_in_with(&CONFIG).await else { return };
    fixture.wait_visible("#agents [data-agent='team/writer']").await;
    fixture.run_script(WATCH_SCRIPT, &[]).await;
    let marker = ProcessMarker::new();
    let mut activities: [AgentActivity; AGENTS.len()] = AGENTS.map(|_| ("idle", String::new()));
    for (number, (agent, action)) in samples(any_action(), 30).into_iter().enumerate() {
        println!("action {number}: {action:?} of {}", AGENTS[agent]);
        perform_action(&fixture, &marker, number, (AGENTS[agent], action), &mut activities[agent]).await;
        for (agent, (status, _)) in AGENTS.iter().zip(&activities) {
            // A run is processing for a moment before it asks its model.
            poll_until(&format!("{agent} is {status}"), async || {
                let view = fixture.http.get(&format!("/api/agents/{}", percent_encode(agent))).await.expect_status(200);
                (view["computeStatus"] == *status).then_some(())
            })
            .await;
            wait_row(&fixture, agent, status).await;
        }
    }
    assert_rule_held(&fixture).await;
    fixture.model.assert_histories_valid();
    fixture.assert_no_page_errors(&[]).await;
}

/// Performs the action if the activity allows it.
async fn perform_action(
    fixture: &PageFixture,
    marker: &ProcessMarker,
    number: usize,
    (agent, action): (&str, AgentAction),
    (status, gate): &mut AgentActivity,
) {
    let begin = async |behaviour: ScriptedResponse| {
        fixture.model.script(behaviour);
        fixture.http.start_run(agent, &json!({"text": format!("act {number}"), "agent": agent})).await;
    };
    *status = match (action, *status) {
        (AgentAction::Wait, "idle") => {
            *gate = format!("gate {number}");
            begin(ScriptedStream::new().text("hm").wait_for_gate(&*gate).text(".").into()).await;
            "waiting_llm"
        }
        (AgentAction::Work, "idle") => {
            begin(shell_call(commands::obeys_signals(marker))).await;
            "processing"
        }
        (AgentAction::Answer, "waiting_llm") => {
            fixture.model.open_gate(gate);
            "idle"
        }
        (AgentAction::Click, "waiting_llm") => {
            let before = fixture.eval("location.href").await;
            fixture.click(&format!("#agents [data-agent='{agent}'] .abort-btn")).await;
            assert_eq!(fixture.eval("location.href").await, before, "the click does not open the row");
            "idle"
        }
        (AgentAction::Stop, _) => {
            let path = format!("/api/sessions/{}/stop", percent_encode(agent));
            let _ = fixture.http.post(&path, &json!({})).await.expect_status(200);
            "idle"
        }
        (_, unchanged) => unchanged,
    };
}
