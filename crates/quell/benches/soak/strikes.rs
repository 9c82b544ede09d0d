//! The stops: each surface as its callers use it.

use std::time::{Duration, Instant};

use quell_testkit::gateway::Gateway;
use serde_json::{Value, json};

use crate::plan::{Plan, Surface};
use crate::site::{Site, run_ids};

/// Whom a stop is for.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) session: String,
    pub(crate) run: String,
    pub(crate) agent: String,
}

/// Asks for the stop of the plan, once or twice; answers the runs that the answers named.
pub(crate) async fn strike(site: &Site, plan: &Plan, target: &Target) -> Vec<String> {
    if !plan.doubled {
        return once(site, plan, target).await;
    }
    let (mut named, more) = tokio::join!(once(site, plan, target), once(site, plan, target));
    let twice: Vec<&String> = named.iter().filter(|run| more.contains(run)).collect();
    if !twice.is_empty() && plan.surface != Surface::Dropped {
        let detail = format!("two stops say that they stopped {twice:?}");
        site.tally.fault(crate::tally::Fault::Answer, &target.run, detail);
    }
    named.extend(more);
    named
}

async fn once(site: &Site, plan: &Plan, target: &Target) -> Vec<String> {
    let begun = Instant::now();
    let Target { session, run, agent } = target;
    let wait = if plan.waits { "?wait=1" } else { "" };
    let mut body = json!({});
    if plan.forced {
        body["force"] = json!(true);
    }
    match plan.surface {
        Surface::HttpRun => {
            let answer = site.http.post(&format!("/api/runs/{run}/stop{wait}"), &body).await;
            let ended = plan.waits || answer.body["state"] == "ended";
            let answer = site.expect(&answer, if ended { 200 } else { 202 }, run);
            site.tally.answered(plan, begun.elapsed());
            run_ids(&answer)
        }
        Surface::HttpSession => {
            body["keepQueued"] = json!(plan.form & 16 == 0);
            post(site, plan, &format!("/api/sessions/{session}/stop{wait}"), &body).await
        }
        Surface::HttpAll => post(site, plan, &format!("/api/stop{wait}"), &body).await,
        Surface::AgentAbort => {
            let scope = if plan.form & 16 == 0 { "" } else { "?scope=run" };
            post(site, plan, &format!("/api/agent/{agent}/abort{scope}"), &body).await
        }
        Surface::StopText => {
            let text = json!({"text": if plan.form & 16 == 0 { "/stop" } else { " STOP " }});
            post(site, plan, &format!("/api/sessions/{session}/runs"), &text).await
        }
        Surface::WsRun => {
            body["runId"] = json!(run);
            body["sessionKey"] = json!(session);
            call(site, plan, "chat.abort", body).await
        }
        Surface::WsSession => {
            body["sessionKey"] = json!(session);
            call(site, plan, "chat.abort", body).await
        }
        Surface::WsSessionsAbort => {
            body["key"] = json!(session);
            call(site, plan, "sessions.abort", body).await
        }
        Surface::Dropped => {
            let path = format!("/api/runs/{run}/stop?wait=1");
            let asked = site.http.post(&path, &body);
            // Whether it was heard is the daemon's to know.
            let heard = tokio::time::timeout(Duration::from_micros(plan.form % 4000), asked).await;
            heard.map_or_else(|_| Vec::new(), |answer| run_ids(&answer.body))
        }
        Surface::TimeOut | Surface::Nobody => Vec::new(),
    }
}

async fn post(site: &Site, plan: &Plan, path: &str, body: &Value) -> Vec<String> {
    let begun = Instant::now();
    let answer = site.http.post(path, body).await;
    let answer = site.expect(&answer, 200, path);
    site.tally.answered(plan, begun.elapsed());
    run_ids(&answer)
}

async fn call(site: &Site, plan: &Plan, method: &str, params: Value) -> Vec<String> {
    let mut gateway = Gateway::connect(&site.daemon).await;
    let begun = Instant::now();
    let answer = gateway.call(method, params).await;
    site.tally.answered(plan, begun.elapsed());
    run_ids(&answer)
}
