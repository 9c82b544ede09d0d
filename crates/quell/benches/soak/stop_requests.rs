//! Send a stop through each transport.

use std::time::{Duration, Instant};

use quell_testkit::gateway_client::GatewayTestClient;
use serde_json::{Value, json};

use crate::fixture::{SoakFixture, run_ids};
use crate::plan::{RoundPlan, StopMethod};

/// The run, session and agent to stop.
#[derive(Debug, Clone)]
pub(crate) struct StopTarget {
    pub(crate) session: String,
    pub(crate) run: String,
    pub(crate) agent: String,
}

/// Sends the planned stop, once or twice. Returns the runs that the answers named.
pub(crate) async fn stop_as_planned(fixture: &SoakFixture, plan: &RoundPlan, target: &StopTarget) -> Vec<String> {
    if !plan.stop_twice {
        return send_stop(fixture, plan, target).await;
    }
    let (mut named, more) = tokio::join!(send_stop(fixture, plan, target), send_stop(fixture, plan, target));
    let twice: Vec<&String> = named.iter().filter(|run| more.contains(run)).collect();
    if !twice.is_empty() && plan.stop_method != StopMethod::CallerDropped {
        let detail = format!("two stops say that they stopped {twice:?}");
        fixture.results.add_fault(crate::results::FaultKind::UnexpectedAnswer, &target.run, detail);
    }
    named.extend(more);
    named
}

async fn send_stop(fixture: &SoakFixture, plan: &RoundPlan, target: &StopTarget) -> Vec<String> {
    let StopTarget { session, run, agent } = target;
    let wait = if plan.wait_for_end { "?wait=1" } else { "" };
    let first_form = plan.variant_bits & 16 == 0;
    let mut body = if plan.forced { json!({"force": true}) } else { json!({}) };
    let path = match plan.stop_method {
        StopMethod::HttpRun => format!("/api/runs/{run}/stop{wait}"),
        StopMethod::HttpSession => {
            body["keepQueued"] = json!(first_form);
            format!("/api/sessions/{session}/stop{wait}")
        }
        StopMethod::HttpAll => format!("/api/stop{wait}"),
        StopMethod::AgentAbort => format!("/api/agent/{agent}/abort{}", if first_form { "" } else { "?scope=run" }),
        StopMethod::StopText => {
            body = json!({"text": if first_form { "/stop" } else { " STOP " }});
            format!("/api/sessions/{session}/runs")
        }
        StopMethod::WsRun => {
            (body["runId"], body["sessionKey"]) = (json!(run), json!(session));
            return call_gateway(fixture, plan, target, ("chat.abort", body)).await;
        }
        StopMethod::WsSession => {
            body["sessionKey"] = json!(session);
            return call_gateway(fixture, plan, target, ("chat.abort", body)).await;
        }
        StopMethod::WsSessionsAbort => {
            body["key"] = json!(session);
            return call_gateway(fixture, plan, target, ("sessions.abort", body)).await;
        }
        StopMethod::CallerDropped => {
            let path = format!("/api/runs/{run}/stop?wait=1");
            let asked = fixture.http().post(&path, &body);
            // Only the daemon knows whether the stop arrived.
            let answered = tokio::time::timeout(Duration::from_micros(plan.variant_bits % 4000), asked).await;
            fixture.results.add_stop_answer(&path, &json!(answered.is_ok()));
            return answered.map_or_else(|_| Vec::new(), |answer| run_ids(&answer.body));
        }
        StopMethod::TimeOut | StopMethod::NoStop => return Vec::new(),
    };
    let begun = Instant::now();
    let answer = fixture.http().post(&path, &body).await;
    fixture.results.add_stop_answer(&format!("{path} {body}"), &answer.body);
    if note_unreached_nodes(fixture, plan, target, &answer.body) && answer.status == 503 {
        return Vec::new();
    }
    let is_ending = plan.stop_method == StopMethod::HttpRun && !plan.wait_for_end && answer.body["state"] != "ended";
    let answer = fixture.expect_status(&answer, if is_ending { 202 } else { 200 }, &path);
    fixture.results.add_answer_time(plan, begun.elapsed());
    run_ids(&answer)
}

async fn call_gateway(
    fixture: &SoakFixture,
    plan: &RoundPlan,
    target: &StopTarget,
    (method, params): (&str, Value),
) -> Vec<String> {
    let mut gateway = GatewayTestClient::connect(fixture.daemon()).await;
    let begun = Instant::now();
    let request = format!("{method} {params}");
    let answer = gateway.call(method, params).await;
    fixture.results.add_stop_answer(&request, &answer);
    fixture.results.add_answer_time(plan, begun.elapsed());
    note_unreached_nodes(fixture, plan, target, &answer);
    run_ids(&answer)
}

/// Notes an answer that names nodes which have not answered in time. The stop must be stored for them. True if it is so.
fn note_unreached_nodes(fixture: &SoakFixture, plan: &RoundPlan, target: &StopTarget, answer: &Value) -> bool {
    let nodes = answer["unreached"].as_array().map_or(&[][..], Vec::as_slice);
    let is_stored = answer["detail"].as_str().is_some_and(|detail| detail.contains("The stop is stored"));
    if (nodes.is_empty() || nodes.iter().any(|node| node["stored"] == false)) && !is_stored {
        return false;
    }
    let mut facts = fixture.results.lock();
    facts.unconfirmed_stops += 1;
    facts.maybe_stopped.extend([target.run.clone(), target.session.clone()]);
    facts.all_maybe_stopped |= matches!(plan.stop_method, StopMethod::HttpAll | StopMethod::AgentAbort);
    true
}
