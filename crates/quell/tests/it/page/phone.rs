//! On a phone: one column, tabs at the bottom, lists as drawers, and the stop always under the thumb.

use quell_testkit::browser::{Screen, is_skipped};
use quell_testkit::model::Behaviour;

use super::Scene;

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_within_reach_of_a_thumb() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    browser.screen(Screen::PHONE).await;
    scene.sign_in().await;
    browser.shown("#message").await;
    scene.streaming("begun").await;
    let send = browser.value("(r => [r.width, r.height, innerHeight - r.bottom])(document.querySelector('#send').getBoundingClientRect())").await;
    assert!(send[0].as_f64() >= Some(44.0) && send[1].as_f64() >= Some(44.0), "large enough for a thumb: {send}");
    assert!(send[2].as_f64() < Some(200.0), "at the bottom: {send}");
    browser.click("#send").await;
    browser.reads("article.turn.stopped .receipt-line", "stopped in ").await;
    scene.mode("send").await;

    // The sessions are in a drawer, which closes when one is chosen.
    scene.model.script(Behaviour::silent_mid_stream("elsewhere"));
    let run = scene.send("other", "go on").await;
    assert_eq!(browser.value("document.querySelector('#rail-toggle').getAttribute('aria-expanded')").await, "false");
    browser.click("#rail-toggle").await;
    browser.click("#sessions [data-session=other]").await;
    browser.reads("article.turn[data-role=assistant]", "elsewhere").await;
    browser.until("document.querySelector('#rail-toggle').getAttribute('aria-expanded') === 'false'").await;
    scene.mode("stop").await;

    browser.click("#tabs a[href='#/runs']").await;
    browser.until("document.body.dataset.view === 'runs'").await;
    browser.shown(&format!("#runs tr[data-run='{run}'] .stop-run")).await;
    browser.click("#tabs a[href='#/agents']").await;
    browser.shown("#agents [data-agent=main] .abort-btn").await;
    browser.click("#agents [data-agent=main] .abort-btn").await;
    scene.toast("success", "Model call stopped").await;
    assert_eq!(scene.ended(&run).await["verdict"]["kind"], "aborted");

    let hold = "innerHeight - document.querySelector('#hold').getBoundingClientRect().bottom";
    assert!(browser.value(hold).await.as_f64() < Some(10.0), "it is one of the tabs");
    browser.click("#hold").await;
    browser.shown("#hold[aria-checked=true]").await;
    browser.click("#tabs a[href='#/']").await;
    browser.shown("#message").await;
    // Every view fits: nobody has to push a page sideways.
    for route in ["#/", "#/runs", "#/agents", "#/approvals", &format!("#/r/{run}")] {
        scene.go(route).await;
        browser.until("document.documentElement.scrollWidth <= innerWidth").await;
    }
    browser.assert_quiet(&[]).await;
}
