//! What one node does for all: listening to a chat network, retention. Another goes on when that node has died, and
//! nothing is told twice.

use std::time::Instant;

use quell_testkit::daemon::TestApiResponse;
use quell_testkit::networks::telegram::{FakeTelegram, FakeTelegramState, TOKEN, TelegramTestUser};
use quell_testkit::networks::webhook::{self, FakeWebhookReceiver};
use reqwest::Method;

use super::*;

const ANN: TelegramTestUser = TelegramTestUser { id: 77, name: "ann" };
/// A private chat has the id of its user.
const CHAT: i64 = 77;
const SESSION: &str = "telegram_77_77";

async fn start_with_telegram(count: usize) -> Option<(FakeTelegram, TestCluster)> {
    let telegram = FakeTelegram::start().await;
    let channel = format!(
        "[channels.telegram]\nkind = \"telegram\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\noperators = [\"77\"]\n",
        telegram.base_url()
    );
    let cluster = TestCluster::start_in(count, Bus::Nats, "", &channel, &[("TOKEN", TOKEN)]).await?;
    Some((telegram, cluster))
}

/// How often a node has begun to listen.
fn listener_starts(telegram: &FakeTelegramState) -> usize {
    telegram.calls_of("getMe").count()
}

/// Waits until the chat shows an answer, and until no reply is under way: a draft shows the same text before.
async fn wait_for_answer(telegram: &FakeTelegram, cluster: &TestCluster, answer: &str) {
    telegram.wait_for(answer, |it| it.bot_texts(CHAT).contains(&answer)).await;
    poll_until("the reply is complete", async || {
        (cluster.server.sql("SELECT count(*) FROM channel_traces") == "0").then_some(())
    })
    .await;
}

impl TestCluster {
    /// The index of the node that has a duty.
    async fn duty_holder(&self, duty: &str) -> usize {
        let sql = format!(
            "SELECT nodes.name FROM node_duties JOIN nodes ON nodes.epoch = holder
             WHERE node_duties.name = '{duty}' AND node_duties.expires_at > clock_timestamp()"
        );
        poll_until("a node has the duty", async || {
            let name = self.server.sql(&sql);
            self.homes.iter().position(|home| home.node == name)
        })
        .await
    }

    /// The nodes whose logs say that they have got a duty.
    fn duty_logs(&self, duty: &str) -> usize {
        let line = format!("this node has the duty duty=\"{duty}\"");
        self.nodes.iter().map(|node| node.output().matches(&line).count()).sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_listens_to_a_chat_and_another_when_it_is_killed() {
    let Some((telegram, cluster)) = start_with_telegram(3).await else { return };
    cluster.model.script(ScriptedResponse::text("first answer"));
    telegram.post_message(CHAT, ANN, "a question");
    wait_for_answer(&telegram, &cluster, "first answer").await;
    assert_eq!(listener_starts(&telegram.state()), 1);
    for node in 0..3 {
        let rows = cluster.api(node).get("/api/channels").await.expect_status(200);
        assert_fields(&rows["items"][0], &json!({"name": "telegram", "state": "connected", "heard": 1}));
        let body = json!({"to": "telegram:77", "text": format!("from node {node}")});
        let sent = cluster.api(node).post("/api/channels/send", &body).await.expect_status(200);
        assert_fields(&sent, &json!({"delivery": "delivered"}));
    }
    let holder = cluster.duty_holder("channel/telegram").await;
    assert_eq!(cluster.owner(SESSION), cluster.homes[holder].node);
    cluster.nodes[holder].kill9().await;
    cluster.model.script(ScriptedResponse::text("second answer"));
    telegram.post_message(CHAT, ANN, "another question");
    telegram.wait_for("another listener", |it| listener_starts(it) == 2).await;
    wait_for_answer(&telegram, &cluster, "second answer").await;
    let next = cluster.duty_holder("channel/telegram").await;
    assert_ne!(next, holder);
    assert_eq!(cluster.owner(SESSION), cluster.homes[next].node);
    let texts = ["first answer", "from node 0", "from node 1", "from node 2", "second answer"];
    assert_eq!(telegram.state().bot_texts(CHAT), texts);
    assert_eq!(cluster.model.request_count(), 2);
    cluster.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_listener_tells_nothing_when_it_goes_on() {
    let Some((telegram, cluster)) = start_with_telegram(2).await else { return };
    cluster.model.script(ScriptedStream::new().text("I have begun").wait_for_gate("more").text(", and ended"));
    telegram.post_message(CHAT, ANN, "write a book");
    telegram.wait_for("the draft", |it| it.bot_texts(CHAT).contains(&"I have begun")).await;
    let holder = cluster.duty_holder("channel/telegram").await;
    poll_until("the draft is stored", async || {
        let drafts = cluster.server.sql("SELECT count(*) FROM channel_traces WHERE draft IS NOT NULL");
        (drafts == "1").then_some(())
    })
    .await;
    let suspended = cluster.nodes[holder].suspend();
    telegram.wait_for("another listener", |it| listener_starts(it) == 2).await;
    let ended = "⚠️ Quell was restarted before this was answered. Ask again.";
    telegram.wait_for("the end", |it| it.bot_texts(CHAT).iter().any(|text| text.contains(ended))).await;
    cluster.model.script(ScriptedResponse::text("second answer"));
    telegram.post_message(CHAT, ANN, "another question");
    wait_for_answer(&telegram, &cluster, "second answer").await;
    let before: Vec<String> = telegram.state().bot_texts(CHAT).into_iter().map(str::to_owned).collect();
    cluster.model.open_gate("more");
    drop(suspended);
    cluster.nodes[holder].wait_exit().await;
    assert_eq!(telegram.state().bot_texts(CHAT), before);
    assert_eq!(before.len(), 2, "{before:?}");
    poll_until("no reply is left", async || {
        (cluster.server.sql("SELECT count(*) FROM channel_traces") == "0").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_gets_the_session_that_another_node_has_and_stops_what_runs_there() {
    let Some((telegram, cluster)) = start_with_telegram(3).await else { return };
    cluster.model.script(ScriptedResponse::text("first answer"));
    telegram.post_message(CHAT, ANN, "a question");
    wait_for_answer(&telegram, &cluster, "first answer").await;
    let first = cluster.duty_holder("channel/telegram").await;
    let status = cluster.nodes[first].stop().await;
    assert!(status.success(), "{}", cluster.nodes[first].output());
    telegram.wait_for("another listener", |it| listener_starts(it) == 2).await;
    let listener = cluster.duty_holder("channel/telegram").await;
    let other = (0..3).find(|node| *node != first && *node != listener).unwrap();
    let marker = ProcessMarker::new();
    let run = cluster.start_command(other, SESSION, &marker).await;
    assert_eq!(cluster.owner(SESSION), cluster.homes[other].node);
    telegram.post_message(CHAT, ANN, "/stop");
    telegram.wait_for("the reply", |it| it.bot_texts(CHAT).iter().any(|text| text.contains("Stopping"))).await;
    marker.wait_gone(WAIT_TIMEOUT).await;
    telegram.wait_for("the receipt", |it| it.bot_texts(CHAT).iter().any(|text| text.contains("stopped in"))).await;
    assert_fields(&cluster.api(listener).run_view(&run).await, &json!({"verdict": {"kind": "aborted"}}));
    let state = telegram.state();
    assert_eq!(state.bot_texts(CHAT)[1], "Stopping your request.");
    cluster.model.script(ScriptedResponse::text("second answer"));
    telegram.post_message(CHAT, ANN, "another question");
    wait_for_answer(&telegram, &cluster, "second answer").await;
    assert_eq!(cluster.owner(SESSION), cluster.homes[listener].node);
    cluster.model.assert_histories_valid();
}

/// Posts a body with the signature of another one.
async fn post_signed(api: &TestApiClient, body: &str, signed: &str) -> TestApiResponse {
    let anybody = api.with_token("");
    let request = anybody.request(Method::POST, "/api/channels/shop/messages").body(body.to_owned());
    let headers = FakeWebhookReceiver::signed_headers(signed, jiff::Timestamp::now().as_second());
    let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
    anybody.send(request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_posted_to_another_node_is_answered_once_by_the_listener() {
    let receiver = FakeWebhookReceiver::start().await;
    let channel = format!(
        "[channels.shop]\nkind = \"webhook\"\ntoken_env = \"TOKEN\"\nreply_url = \"{}\"\nallow = [\"*\"]\ndrafts = false\n",
        receiver.reply_url()
    );
    let variables = [("TOKEN", webhook::TOKEN)];
    let Some(cluster) = TestCluster::start_in(2, Bus::Nats, "", &channel, &variables).await else { return };
    let holder = cluster.duty_holder("channel/shop").await;
    cluster.model.script(ScriptedResponse::text("It left today."));
    let body = json!({"id": "m1", "sender": "c4", "target": "o17", "text": "Where is it?"}).to_string();
    for node in [1 - holder, holder, 1 - holder] {
        let answer = post_signed(&cluster.api(node), &body, &body).await;
        assert_eq!((answer.status, &answer.body), (202, &json!({"id": "m1"})), "{node}");
    }
    receiver.wait_for("the answer", |it| it.texts("o17") == ["It left today."]).await;
    let forged = body.replace("Where", "There");
    let refused = post_signed(&cluster.api(1 - holder), &forged, &body).await;
    assert_eq!(refused.problem_code(), Some("bad_signature"));
    cluster.model.script(ScriptedResponse::text("You are welcome."));
    let thanks = json!({"id": "m2", "sender": "c4", "target": "o17", "text": "Thanks."}).to_string();
    assert_eq!(post_signed(&cluster.api(1 - holder), &thanks, &thanks).await.status, 202);
    receiver.wait_for("the next", |it| it.texts("o17") == ["It left today.", "You are welcome."]).await;
    assert_eq!(cluster.model.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_runs_on_one_node_and_moves_when_it_is_killed() {
    move_retention().await;
}

/// Returns the time until another node has the duty; `None` where a server is switched off for the tests.
async fn move_retention() -> Option<Duration> {
    let cluster = TestCluster::start(3, Bus::Nats).await?;
    let holder = cluster.duty_holder("retention").await;
    let killed = Instant::now();
    assert_eq!(cluster.duty_logs("retention"), 1);
    cluster.nodes[holder].kill9().await;
    let next = poll_until("another node has the duty", async || {
        let next = cluster.duty_holder("retention").await;
        (next != holder).then_some(next)
    })
    .await;
    let taken_over_after = killed.elapsed();
    assert_eq!(cluster.duty_logs("retention"), 2, "{}", cluster.nodes[next].output());
    Some(taken_over_after)
}

mod timing {
    use super::*;

    /// The target is the lease and a moment.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn another_node_takes_a_duty_over() {
        let Some(took) = move_retention().await else { return };
        report_time(&format!("a duty of a killed node, with a lease of {LEASE:?}"), took);
    }
}
