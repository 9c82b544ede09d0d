//! The example of docs/channels/webhook.md, as it stands there: a shop in Python that posts to Quell and is posted to.

use std::net::TcpListener;

use quell_testkit::daemon::client;
use quell_testkit::model::{Behaviour, Stream};
use quell_testkit::networks::webhook::{FakeReceiver, TOKEN};
use serde_json::{Value, json};

use super::House;
use crate::examples::{Python, blocks, skips_python};
use crate::harness::Claim;

const PAGE: &str = include_str!("../../../../../docs/channels/webhook.md");

/// The program and its channel, with a port that is free here.
fn example() -> (String, String, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (program, channel) = (blocks(PAGE, "python")[0], blocks(PAGE, "toml")[1]);
    assert!(program.contains("8098") && channel.contains("8098"), "{channel}");
    let here = |text: &str| text.replace("8098", &port.to_string());
    (here(program), here(channel), port)
}

fn shop(program: &str, secret: &str, house: &House) -> Python {
    let url = house.daemon.url().to_owned();
    Python::start(program, |python| {
        python.env("SHOP_SECRET", secret).env("QUELL_URL", url);
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shop_in_python_writes_and_is_answered() {
    if skips_python() {
        return;
    }
    let (program, channel, _) = example();
    let house = House::with_tokens(Claim::shared().await, &channel, &[("SHOP_SECRET", TOKEN)]).await;
    let mut shop = shop(&program, TOKEN, &house);
    house.model.script(Stream::new().text("It **left**").wait_for("rest").text(" today."));
    shop.type_line("Where is it?").await;
    // A draft, which grows.
    assert!(shop.line().await.starts_with("m1 to order-17: "));
    house.model.open_gate("rest");
    while shop.line().await != "m1 is now: It **left** today." {}
    house.model.script(Behaviour::text("At noon."));
    shop.type_line("When?").await;
    let whole = ["m2 to order-17: At noon.", "m2 is now: At noon."];
    while !whole.contains(&shop.line().await.as_str()) {}
    // A program with another secret is told what Quell thinks of it.
    let (stranger, ..) = example();
    let mut stranger = self::shop(&stranger, "another secret of sixteen", &house);
    stranger.type_line("hello").await;
    let refused = stranger.line().await;
    assert!(refused.starts_with("refused: 401 ") && refused.contains("bad_signature"), "{refused}");
    assert!(house.daemon.stop().await.success(), "{}", house.daemon.output());
}

/// Posts an event as Quell would, at another time or with something else in its body.
async fn post(url: &str, body: &str, headers: [(&'static str, String); 3]) -> (u16, Value) {
    let request = headers.into_iter().fold(client().post(url), |request, (name, value)| request.header(name, value));
    let answer = request.body(body.to_owned()).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shop_in_python_takes_each_event_once_and_only_from_quell() {
    if skips_python() {
        return;
    }
    let (program, channel, port) = example();
    let house = House::with_tokens(Claim::shared().await, &channel, &[("SHOP_SECRET", TOKEN)]).await;
    let mut shop = shop(&program, TOKEN, &house);
    // Its first answer says that it listens.
    shop.type_line("/stop").await;
    assert_eq!(shop.line().await, "m1 to order-17: Nothing of yours is running here.");
    let (url, now) = (format!("http://127.0.0.1:{port}/"), jiff::Timestamp::now().as_second());
    let event = json!({"channel": "shop", "id": "e-1", "type": "message", "target": "o", "text": "hi", "plain": "hi"});
    let (event, forged) = (event.to_string(), event.to_string().replace("hi", "ho"));
    for _ in 0..2 {
        let answer = post(&url, &event, FakeReceiver::headers(&event, now)).await;
        assert_eq!(answer, (200, json!({"id": "m2"})));
    }
    for headers in [FakeReceiver::headers(&event, now), FakeReceiver::headers(&forged, now - 301)] {
        let (status, said) = post(&url, &forged, headers).await;
        assert_eq!((status, &said["reason"]), (401, &json!("the signature is wrong or too old")), "{said}");
    }
    let edit = |revision: i64, text: &str| {
        json!({"channel": "shop", "id": text, "type": "edit", "message": "m2", "revision": revision, "text": text})
            .to_string()
    };
    for edit in [edit(2, "second"), edit(1, "first"), edit(3, "third")] {
        assert_eq!(post(&url, &edit, FakeReceiver::headers(&edit, now)).await.0, 200);
    }
    let printed = [shop.line().await, shop.line().await, shop.line().await];
    assert_eq!(printed, ["m2 to o: hi", "m2 is now: second", "m2 is now: third"]);
    assert!(house.daemon.stop().await.success(), "{}", house.daemon.output());
}
