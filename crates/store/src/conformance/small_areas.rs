//! Agents, cookies, cursors of channels, use of sessions, spend outside of runs.

use quell_protocol::api::{AccessLevel, TokenRestrictions, TokenRow};

use super::*;
use crate::{StoredAgent, StoredCookie, StoredToken};

fn agent(id: &str) -> StoredAgent {
    StoredAgent {
        id: AgentId::parse(id).unwrap(),
        config: format!("config of {id}"),
        created_at: "noon".into(),
        created_by: Principal::parse("admin").unwrap(),
    }
}

pub(crate) async fn an_agent_is_created_once_and_listed_by_id<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for id in ["b", "c", "a"] {
        store.agents().create(agent(id)).await.unwrap();
    }
    let again = StoredAgent { config: "other".into(), ..agent("a") };
    assert!(store.agents().create(again).await.is_err());
    store.agents().delete(vec![agent("c").id, agent("unknown").id]).await.unwrap();
    store.close().await;
    assert_eq!(home.open().agents().list().await, Ok(vec![agent("a"), agent("b")]));
}

fn cookie(sha256: &str, token: &str, expires: i64) -> StoredCookie {
    StoredCookie { sha256: sha256.into(), token: token.into(), expires, verified_person: expires == 40 }
}

async fn valid_cookies(store: &Store, now: i64) -> Vec<String> {
    let cookies = store.access().list_valid_cookies(now, 100).await.unwrap();
    cookies.into_iter().map(|cookie| cookie.sha256).collect()
}

pub(crate) async fn a_cookie_lasts_until_its_expiry_and_no_longer_than_its_token<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let scope = AccessLevel::Read;
    let row = TokenRow {
        name: "ci".into(),
        scope,
        scopes: vec![scope.into()],
        created_at: "noon".into(),
        expires_at: None,
        rotated_at: None,
        previous_until: None,
        restrictions: TokenRestrictions::default(),
        usage: None,
    };
    store.access().create_token(StoredToken { row, sha256: "t".into(), previous_sha256: None }).await.unwrap();
    for (sha256, token, expires) in [("1", "t", 10), ("2", "t", 30), ("3", "u", 20), ("4", "t", 20), ("2", "t", 40)] {
        store.access().save_cookie(cookie(sha256, token, expires), 2).await.unwrap();
    }
    assert_eq!(valid_cookies(&store, 20).await.first().map(String::as_str), Some("2"), "the latest expiry first");
    assert_eq!(valid_cookies(&store, 0).await.len(), 3, "two of the one token, one of the other");
    assert_eq!(store.access().list_valid_cookies(0, 1).await, Ok(vec![cookie("2", "t", 40)]));
    assert_eq!(valid_cookies(&store, 21).await, ["2"]);
    store.access().delete_expired_cookies(21).await.unwrap();
    store.access().save_cookie(cookie("5", "u", 50), 2).await.unwrap();
    assert_eq!(valid_cookies(&store, 0).await, ["5", "2"]);
    store.access().revoke_token("ci".into()).await.unwrap();
    assert_eq!(valid_cookies(&store, 0).await, ["5"]);
    store.access().delete_cookie("5".into()).await.unwrap();
    assert_eq!(valid_cookies(&store, 0).await, Vec::<String>::new());
}

pub(crate) async fn the_last_cursor_of_a_channel_is_kept<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    for (channel, cursor) in [("tg", "1"), ("slack", "x"), ("tg", "2")] {
        store.channels().save_cursor(channel.into(), cursor.into()).await.unwrap();
    }
    store.close().await;
    let store = home.open();
    assert_eq!(store.channels().cursor("tg".into()).await, Ok(Some("2".into())));
    assert_eq!(store.channels().cursor("irc".into()).await, Ok(None));
}

pub(crate) async fn the_last_use_of_a_session_only_moves_forward<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    for at in ["2027-01-01T00:00:00.000000Z", "2026-12-01T00:00:00.000000Z"] {
        store.sessions().touch(session_key("s"), at.into()).await.unwrap();
    }
    store.sessions().touch(session_key("unknown"), "2027-01-01T00:00:00.000000Z".into()).await.unwrap();
    let session = find_session(&store, "s").await;
    assert_eq!(session.last_used_at, "2027-01-01T00:00:00.000000Z");
    assert_eq!(store.sessions().count().await, Ok(1));
}

pub(crate) async fn usage_outside_of_runs_is_added_to_its_day<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let agent = || AgentId::parse("main").unwrap();
    let usage = |tokens| Usage { input_tokens: tokens, output_tokens: 1, cached_tokens: 0, estimated: false };
    for (day, tokens) in [("2026-05-01", 5), ("2026-05-01", 6), ("2026-05-02", 7)] {
        store.spend().add(agent(), day.into(), usage(tokens)).await.unwrap();
    }
    let expected = Usage { output_tokens: 2, ..usage(11) };
    assert_eq!(store.spend().on_day("2026-05-01".into()).await, Ok(vec![(agent(), expected)]));
}
