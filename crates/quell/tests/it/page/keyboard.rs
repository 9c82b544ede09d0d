//! The whole way without a mouse: sign in, a new session, type, send, stop, look at everything, stop one, stop all.

use quell_testkit::browser::{Key, is_skipped};
use quell_testkit::model::Behaviour;

use super::{SIGNED_OUT, Scene};

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_reached_and_stopped_with_the_keyboard_alone() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    browser.open(scene.daemon.url()).await;
    browser.shown("#sign-in").await;
    browser.tab_to("#token").await;
    browser.keys(scene.daemon.token()).await;
    browser.press(Key::Enter).await;
    browser.until("document.body.dataset.view === 'chat'").await;
    browser.shown("[data-fact=connection][data-state=live]").await;

    // As over plain HTTP from another machine.
    browser.run("delete Crypto.prototype.randomUUID;", &[]).await;
    browser.tab_to("#new-session").await;
    focus_is_visible(&scene).await;
    browser.press(Key::Enter).await;
    browser.shown("#message").await;
    browser.tab_to("#message").await;
    scene.model.script(Behaviour::silent_mid_stream("begun"));
    browser.keys("hello").await;
    browser.press(Key::Enter).await;
    scene.mode("stop").await;
    browser.reads("article.turn[data-role=assistant]", "begun").await;
    browser.press(Key::Escape).await;
    browser.reads("article.turn.stopped .receipt-line", "stopped in ").await;
    scene.mode("send").await;

    for _ in 0..2 {
        scene.model.script(Behaviour::silent_mid_stream("begun"));
    }
    let (one, two) = (scene.send("one", "go").await, scene.send("two", "go").await);
    // By the link of the page that leads there, not by its address.
    browser.tab_to("a[href='#/runs']").await;
    focus_is_visible(&scene).await;
    browser.press(Key::Enter).await;
    browser.until("document.body.dataset.view === 'runs'").await;
    let stop_one = format!("#runs tr[data-run='{one}'] .stop-run");
    browser.shown(&stop_one).await;
    browser.tab_to(&stop_one).await;
    focus_is_visible(&scene).await;
    browser.press(Key::Enter).await;
    assert_eq!(scene.ended(&one).await["verdict"]["kind"], "aborted");
    browser.gone(&stop_one).await;

    browser.tab_to("#stop-all").await;
    browser.press(Key::Enter).await;
    browser.shown("#stop-all-dialog").await;
    // The focus is inside, and stays there.
    for _ in 0..6 {
        assert_eq!(
            browser
                .value(
                    "!!document.activeElement.closest('#stop-all-dialog') || document.activeElement === document.body"
                )
                .await,
            true
        );
        browser.press(Key::Tab).await;
    }
    browser.tab_to("#stop-all-confirm").await;
    browser.press(Key::Enter).await;
    assert_eq!(scene.ended(&two).await["verdict"]["kind"], "aborted");
    browser.gone("#stop-all-dialog").await;
    browser.until("document.activeElement && document.activeElement !== document.body").await;
    browser.assert_quiet(&[SIGNED_OUT]).await;
}

/// Whoever goes on with Tab sees where they are.
async fn focus_is_visible(scene: &Scene) {
    let outline =
        "(s => s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1)(getComputedStyle(document.activeElement))";
    let seen = scene.browser.value(&format!("document.activeElement.matches(':focus-visible') && {outline}")).await;
    assert_eq!(
        seen,
        true,
        "no outline on {}",
        scene.browser.value("document.activeElement.outerHTML.slice(0, 200)").await
    );
}
