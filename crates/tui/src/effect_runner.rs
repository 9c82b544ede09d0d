//! Run effects as concurrent requests and return their results as inputs. The keyboard never waits for the network, and
//! a hanging request does not delay others.

use std::collections::HashMap;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use quell_client::daemon_client::{
    ClientError, ClientRunFilter, DaemonClient, RunEventStream, RunEventStreamItem, StopWait,
};
use quell_protocol::RunId;
use quell_protocol::api::{StopRunRequest, StopSessionRequest};
use quell_protocol::mcp::McpContentCommand;
use quell_protocol::undo::UndoRequest;
use quell_protocol::web_ui::SessionPatch;

use crate::effects::{ChatEffect, ChatInput, ChatRunUpdate, DaemonFailure, DaemonQuery, DaemonResponse, HistorySlice};

/// Turns per history page; more than fit on a screen.
const HISTORY_PAGE_TURNS: u32 = 30;

/// Run, follow id, stream, and the next update; none at the stream's end.
type FollowStep = (RunId, u64, RunEventStream, Option<ChatRunUpdate>);

pub(crate) struct EffectRunner {
    client: DaemonClient,
    pending_calls: FuturesUnordered<BoxFuture<'static, DaemonResponse>>,
    follows: FuturesUnordered<BoxFuture<'static, FollowStep>>,
    /// The valid follow id of each run; updates of an older one are dropped.
    current_follow_ids: HashMap<RunId, u64>,
    last_follow_id: u64,
    /// Number of sent messages and stops without an answer.
    unacknowledged: usize,
}

impl EffectRunner {
    pub(crate) fn new(client: DaemonClient) -> Self {
        Self {
            client,
            pending_calls: FuturesUnordered::new(),
            follows: FuturesUnordered::new(),
            current_follow_ids: HashMap::new(),
            last_follow_id: 0,
            unacknowledged: 0,
        }
    }

    /// Starts an effect. The event loop handles effects on the screen itself.
    pub(crate) fn start_effect(&mut self, effect: ChatEffect) {
        let client = self.client.clone();
        let needs_acknowledgement = matches!(
            effect,
            ChatEffect::SendMessage { .. } | ChatEffect::StopSession { .. } | ChatEffect::StopRun { .. }
        );
        self.unacknowledged += usize::from(needs_acknowledgement);
        let call: BoxFuture<'static, DaemonResponse> = match effect {
            ChatEffect::SendMessage { run, session, request } => Box::pin(async move {
                let result = client.send_message(&session, &request).await.map_err(DaemonFailure::from);
                DaemonResponse::Sent { run, result }
            }),
            ChatEffect::StopSession { session, force } => Box::pin(async move {
                let request = StopSessionRequest { force, keep_background: true, ..StopSessionRequest::default() };
                let result = client
                    .stop_session(&session, &request, StopWait::UntilRequested)
                    .await
                    .map_err(DaemonFailure::from);
                DaemonResponse::SessionStopped { session, result }
            }),
            ChatEffect::StopRun { run, force } => Box::pin(async move {
                let request = StopRunRequest { force, ..StopRunRequest::default() };
                let result =
                    client.stop_run(&run, &request, StopWait::UntilRequested).await.map_err(DaemonFailure::from);
                DaemonResponse::RunStopped { run, result }
            }),
            ChatEffect::AnswerApproval { id, answer } => Box::pin(async move {
                let result = client.answer_approval(&id, &answer).await.map_err(DaemonFailure::from);
                DaemonResponse::ApprovalAnswered { id, result }
            }),
            ChatEffect::SetHold(held) => Box::pin(async move {
                let result = if held { client.set_hold(None).await } else { client.lift_hold().await };
                DaemonResponse::Hold { result: result.map_err(DaemonFailure::from), by_user: true }
            }),
            ChatEffect::UndoRun(run) => Box::pin(async move {
                let undone = client.undo_run(&run, UndoRequest::default()).await;
                DaemonResponse::Undone(undone.map_err(DaemonFailure::from))
            }),
            ChatEffect::SetModel { session, model } => Box::pin(async move {
                let patch = SessionPatch { model: Some(model.clone()), ..SessionPatch::default() };
                let result = client.patch_session(&session, &patch).await.map_err(DaemonFailure::from);
                DaemonResponse::ModelSet { model, result }
            }),
            ChatEffect::Query(query) => run_query(client, query).boxed(),
            ChatEffect::FollowRun { run, after } => return self.follow_run(run, after),
            ChatEffect::UnfollowAll => return self.unfollow_all(),
            ChatEffect::Scroll(_) | ChatEffect::Redraw | ChatEffect::Exit => return,
        };
        self.pending_calls.push(call);
    }

    fn follow_run(&mut self, run: RunId, after: u64) {
        self.last_follow_id += 1;
        self.current_follow_ids.insert(run.clone(), self.last_follow_id);
        let stream = self.client.follow_run(&run, after);
        self.follows.push(next_follow_step(run, self.last_follow_id, stream));
    }

    fn unfollow_all(&mut self) {
        self.current_follow_ids.clear();
        self.follows.clear();
    }

    /// True while a message or a stop has no answer: leaving now could lose it.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Returns the next result of any request or followed run; waits forever while there is none.
    ///
    /// # Cancel safety
    /// Safe: all requests continue in the next call and no result is lost.
    pub(crate) async fn next_input(&mut self) -> ChatInput {
        loop {
            tokio::select! {
                // Cancel safe: both fields keep their futures.
                Some(answer) = self.pending_calls.next() => {
                    let was_acknowledgement = matches!(
                        answer,
                        DaemonResponse::Sent { .. } | DaemonResponse::SessionStopped { .. } | DaemonResponse::RunStopped { .. }
                    );
                    self.unacknowledged -= usize::from(was_acknowledgement);
                    return ChatInput::Response(answer);
                }
                Some(stepped) = self.follows.next() => {
                    if let Some(input) = self.handle_follow_step(stepped) {
                        return input;
                    }
                }
                else => std::future::pending::<()>().await,
            }
        }
    }

    fn handle_follow_step(&mut self, (run, follow, stream, seen): FollowStep) -> Option<ChatInput> {
        if self.current_follow_ids.get(&run) != Some(&follow) {
            return None;
        }
        let Some(seen) = seen else {
            self.current_follow_ids.remove(&run);
            return None;
        };
        self.follows.push(next_follow_step(run.clone(), follow, stream));
        Some(ChatInput::RunUpdate(run, seen))
    }
}

fn next_follow_step(run: RunId, follow: u64, mut stream: RunEventStream) -> BoxFuture<'static, FollowStep> {
    async move {
        let seen = stream.next().await.map(|seen| match seen {
            Ok(RunEventStreamItem::Event(event)) => ChatRunUpdate::Event(event),
            Ok(RunEventStreamItem::Disconnected { cause, .. }) => ChatRunUpdate::Disconnected(cause),
            Ok(RunEventStreamItem::Reconnected) => ChatRunUpdate::Reconnected,
            Err(error) => ChatRunUpdate::FollowFailed(error.into()),
        });
        (run, follow, stream, seen)
    }
    .boxed()
}

async fn run_query(client: DaemonClient, query: DaemonQuery) -> DaemonResponse {
    let failed = |error: ClientError| DaemonFailure::from(error);
    match query {
        DaemonQuery::Session(key) => {
            let result = client.get_session(&key).await.map_err(failed);
            DaemonResponse::Session { key, result }
        }
        DaemonQuery::Run(run) => {
            let result = client.get_run(&run).await.map_err(failed);
            DaemonResponse::Run { run, result }
        }
        DaemonQuery::ActiveRuns => {
            DaemonResponse::ActiveRuns(client.list_runs(ClientRunFilter::Active).await.map_err(failed))
        }
        DaemonQuery::Approvals => DaemonResponse::Approvals(client.list_approvals().await.map_err(failed)),
        DaemonQuery::Hold => DaemonResponse::Hold { result: client.get_hold().await.map_err(failed), by_user: false },
        DaemonQuery::Agents => DaemonResponse::Agents(client.list_agents().await.map_err(failed)),
        DaemonQuery::Sessions => DaemonResponse::Sessions(client.list_sessions().await.map_err(failed)),
        DaemonQuery::History { session, page } => {
            let (turns, cursor) = match &page {
                HistorySlice::NewestPage => (HISTORY_PAGE_TURNS, None),
                HistorySlice::PageBefore(cursor) => (HISTORY_PAGE_TURNS, Some(cursor.as_str())),
                HistorySlice::LastTurn => (1, None),
            };
            let result = client.get_history_page(&session, turns, cursor).await.map_err(failed);
            DaemonResponse::History { session, page, result }
        }
        DaemonQuery::McpList { kind, agent } => {
            let result = client.list_mcp(kind, agent.as_ref()).await.map_err(failed);
            DaemonResponse::McpList { kind, result }
        }
        DaemonQuery::McpContent { command, agent } => {
            let McpContentCommand { server, request, text } = *command;
            let result = client.read_mcp(&server, request, agent).await.map_err(failed);
            DaemonResponse::McpContent { text, result }
        }
    }
}

#[cfg(test)]
mod tests;
