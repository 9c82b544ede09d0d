//! Channels for who runs them: listed, tested, written to from outside; what a wrong token looks like; and the door of those that
//! are posted to.

use quell_testkit::daemon::{Answer, Home};
use quell_testkit::model::Behaviour;
use quell_testkit::networks::telegram::{BOT_NAME, FakeTelegram, Person, TOKEN};
use quell_testkit::networks::webhook::{self, FakeReceiver};
use reqwest::Method;
use serde_json::{Value, json};

use super::{CLOSED_WITHIN, House};
use crate::cli::{Ran, exe, run};
use crate::harness::Claim;

const ANN: Person = Person { id: 77, name: "ann" };
/// A private chat has the number of its person.
const CHAT: i64 = 77;

fn telegram_channel(telegram: &FakeTelegram) -> String {
    format!(
        "[channels.tg]\nkind = \"telegram\"\napi_base = \"{}\"\ntoken_env = \"TOKEN\"\nallow = [\"77\"]\n",
        telegram.base_url()
    )
}

pub(super) fn verb(home: &Home, words: &[&str]) -> Ran {
    run(home.command(exe()).args(words))
}

impl House {
    /// Waits until the only channel is in this state.
    async fn fares(&self, state: &str) -> Value {
        loop {
            let rows = self.daemon.http().get("/api/channels").await.expect_status(200);
            if rows["items"][0]["state"] == state {
                return rows["items"][0].clone();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_is_listed_tested_and_written_to() {
    let claim = Claim::shared().await;
    let telegram = FakeTelegram::start().await;
    let house = House::open(claim, &telegram_channel(&telegram), TOKEN).await;
    house.fares("connected").await;
    let home = house.daemon.home();
    telegram.say(CHAT, ANN, "정지");
    telegram.wait_for("an answer", |it| it.bot_texts(CHAT) == ["Nothing of yours is running here."]).await;

    let listed = verb(home, &["channels"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    let row = listed.out.lines().nth(1).unwrap();
    assert!(row.starts_with("tg    telegram  ● connected") && row.contains(BOT_NAME), "{listed:?}");
    let tested = verb(home, &["channels", "test"]);
    assert!(tested.code == 0 && tested.out.starts_with("✓ tg: ") && tested.out.contains(BOT_NAME), "{tested:?}");

    let sent = verb(home, &["channels", "send", "tg:77", "the **backup** is done"]);
    assert_eq!((sent.code, sent.out.as_str()), (0, "delivered\n"), "{sent:?}");
    assert_eq!(telegram.state().bot_texts(CHAT)[1..], ["the backup is done"]);
    let nowhere = verb(home, &["channels", "send", "matrix:!room:example.org", "hello"]);
    assert_eq!((nowhere.code, nowhere.out.as_str()), (3, ""), "{nowhere:?}");
    assert!(nowhere.err.contains("there is no channel \"matrix\"; there are: tg"), "{nowhere:?}");
    telegram.close_to_bot(CHAT);
    let closed = verb(home, &["channels", "send", "tg:77", "anybody there?", "--json"]);
    let told: Value = serde_json::from_str(&closed.out).unwrap();
    assert_eq!((closed.code, &told["delivery"], &told["sent"]), (1, &json!("undelivered"), &json!(0)), "{told:#}");

    let audit = house.daemon.http().get("/api/audit").await.expect_status(200);
    let said = audit["items"].as_array().unwrap().iter().find(|row| row["action"] == "send_to_channel").unwrap();
    assert_eq!((&said["target"], &said["detail"]), (&json!("channel tg"), &json!("to: 77")));
    assert!(!audit.to_string().contains("backup"), "no text stands in the list");
    let metrics = house.daemon.http().get("/metrics").await.expect_status(200);
    let metrics = metrics.as_str().unwrap();
    for shown in ["connected{channel=\"tg\"} 1", "undelivered_total{channel=\"tg\"} 0"] {
        assert!(metrics.contains(&format!("quell_channel_{shown}")), "{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_look_may_not_write_and_who_may_write_may_not_speak_for_the_channel() {
    let claim = Claim::shared().await;
    let telegram = FakeTelegram::start().await;
    let house = House::open(claim, &telegram_channel(&telegram), TOKEN).await;
    let http = house.daemon.http();
    let test = "/api/channels/tg/test";
    let said = json!({"to": "tg:77", "text": "x"});
    for (scope, may_test) in [("read", false), ("write", true)] {
        let made = http.post("/api/tokens", &json!({"name": scope, "scope": scope})).await.expect_status(201);
        let visitor = http.with_token(made["token"].as_str().unwrap());
        let _ = visitor.get("/api/channels").await.expect_status(200);
        assert_eq!(visitor.post(test, &json!({})).await.status, if may_test { 200 } else { 403 });
        assert_eq!(visitor.post("/api/channels/send", &said).await.status, 403);
    }
    let nobody = http.with_token("");
    let answers = [nobody.get("/api/channels").await, nobody.post(test, &json!({})).await];
    assert!(answers.iter().all(|answer| answer.code() == Some("unauthorized")), "{answers:?}");
    assert_eq!(http.post("/api/channels/other/test", &json!({})).await.code(), Some("channel_not_found"));
    for bad in
        [json!({"to": "tg", "text": "x"}), json!({"to": "tg:", "text": "x"}), json!({"to": "tg:77", "text": " "})]
    {
        assert_eq!(http.post("/api/channels/send", &bad).await.code(), Some("invalid_request"), "{bad}");
    }
    assert!(telegram.calls("sendMessage").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_said_everywhere_and_shown_nowhere() {
    let claim = Claim::shared().await;
    let telegram = FakeTelegram::start().await;
    let wrong = "7654321:AAAnotherTokenOfNobody_9876543210zy";
    let house = House::open(claim, &telegram_channel(&telegram), wrong).await;
    let row = house.fares("refused").await;
    assert!(!row["detail"].as_str().unwrap().is_empty(), "{row:#}");
    let home = house.daemon.home();
    let listed = verb(home, &["channels", "list"]);
    assert!(listed.out.contains("▲ refused") && listed.err.starts_with("tg: "), "{listed:?}");
    let tested = verb(home, &["channels", "test", "tg"]);
    assert!(tested.code == 1 && tested.out.starts_with("▲ tg: "), "{tested:?}");
    let examined = verb(home, &["doctor"]);
    assert_eq!(examined.code, 1, "{examined:?}");
    let mut lines = examined.out.lines().skip_while(|line| !line.starts_with("✗ fail  channels        tg: "));
    assert!(lines.nth(1).is_some_and(|remedy| remedy.contains("docs/channels/telegram.md")), "{}", examined.out);
    let log = std::fs::read_to_string(home.log()).unwrap();
    let secret = wrong.split_once(':').unwrap().1;
    for shown in [&listed.out, &listed.err, &tested.out, &examined.out, &log, &row.to_string()] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

/// A channel that is posted to, without a token of the daemon.
pub(super) struct Shop {
    pub(super) receiver: FakeReceiver,
    pub(super) house: House,
}

impl Shop {
    async fn open() -> Self {
        Self::open_with("").await
    }

    /// With more in its configuration.
    pub(super) async fn open_with(more: &str) -> Self {
        let claim = Claim::shared().await;
        let receiver = FakeReceiver::start().await;
        let channel = format!(
            "[channels.shop]\nkind = \"webhook\"\ntoken_env = \"TOKEN\"\nreply_url = \"{}\"\nallow = [\"*\"]\ndrafts = false\n{more}\n",
            receiver.reply_url()
        );
        let house = House::open(claim, &channel, webhook::TOKEN).await;
        Self { receiver, house }
    }

    /// Posts a body, signed for a moment that is so many seconds away.
    pub(super) async fn post(&self, body: &str, away: i64) -> Answer {
        self.post_signed(body, FakeReceiver::headers(body, jiff::Timestamp::now().as_second() + away)).await
    }

    async fn post_signed(&self, body: &str, headers: [(&'static str, String); 3]) -> Answer {
        let http = self.house.daemon.http().with_token("");
        let mut request = http.request(Method::POST, "/api/channels/shop/messages").body(body.to_owned());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        http.send(request).await
    }
}

fn message(id: &str, text: &str) -> String {
    json!({"id": id, "sender": "c4", "target": "o17", "text": text}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_posted_message_is_answered_once_however_often_it_is_posted() {
    let shop = Shop::open().await;
    shop.house.model.script(Behaviour::text("It left today."));
    for _ in 0..3 {
        let answer = shop.post(&message("m1", "Where is it?"), 0).await;
        assert_eq!((answer.status, &answer.body), (202, &json!({"id": "m1"})));
    }
    shop.receiver.wait_for("the answer", |it| it.texts("o17") == ["It left today."]).await;
    // What was posted again would have been asked before what comes now.
    shop.house.model.script(Behaviour::text("You are welcome."));
    let _ = shop.post(&message("m2", "Thanks."), 0).await.expect_status(202);
    shop.receiver.wait_for("the next", |it| it.texts("o17") == ["It left today.", "You are welcome."]).await;
    assert_eq!(shop.house.model.request_count(), 2);
    assert_eq!(shop.house.fares("connected").await["answered"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_is_posted_has_acted_when_it_is_answered() {
    let shop = Shop::open().await;
    shop.house.model.script(Behaviour::silent_mid_stream("Once upon"));
    let _ = shop.post(&message("m1", "tell me a story"), 0).await.expect_status(202);
    shop.house.model.request(0).streaming().await;
    let begun = std::time::Instant::now();
    let _ = shop.post(&message("m2", "/stop"), 0).await.expect_status(202);
    shop.house.model.request(0).client_left().await;
    assert!(begun.elapsed() < CLOSED_WITHIN, "{:?}", begun.elapsed());
    let told = |it: &webhook::State| it.texts("o17").iter().any(|text| text.starts_with("⏹ stopped in"));
    shop.receiver.wait_for("the receipt", told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_proven_or_no_message_is_refused_and_not_heard() {
    let shop = Shop::open().await;
    let body = message("m1", "hello");
    let now = jiff::Timestamp::now().as_second();
    let [kind, at, (name, signature)] = FakeReceiver::headers(&body, now);
    let forged = shop.post_signed(&body.replace("hello", "hullo"), [kind.clone(), at.clone(), (name, signature)]).await;
    assert_eq!((forged.status, forged.code()), (401, Some("bad_signature")));
    let unsigned = shop.post_signed(&body, [kind, at, ("x-nothing", String::new())]).await;
    assert_eq!((unsigned.status, unsigned.code()), (401, Some("bad_signature")));
    for away in [-400, 400] {
        let stale = shop.post(&body, away).await;
        assert_eq!((stale.status, stale.code()), (401, Some("stale_timestamp")));
    }
    let odd = shop.post("{\"id\": \"m1\"}", 0).await;
    assert_eq!((odd.status, odd.code()), (400, Some("invalid_request")));
    let large = shop.post(&message("m1", &"x".repeat(300 * 1024)), 0).await;
    assert_eq!((large.status, large.code()), (413, Some("body_too_large")));
    let http = shop.house.daemon.http();
    // A token of the daemon is no signature.
    let by_token = http.post("/api/channels/shop/messages", &json!({"id": "m1"})).await;
    assert_eq!(by_token.code(), Some("bad_signature"));
    let nobody = http.with_token("").post("/api/channels/other/messages", &json!({})).await;
    assert_eq!((nobody.status, nobody.code()), (404, Some("channel_not_found")));
    assert_eq!(shop.house.fares("connected").await["heard"], 0);
    assert_eq!(shop.house.model.request_count(), 0);
}
