//! The page on a phone: one column, tabs at the bottom, lists as drawers, and the stop button within reach of the
//! thumb.

use quell_testkit::browser::Viewport;

use super::{PageConfig, PageFixture};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_within_reach_of_a_thumb() {
    let Some(fixture) = PageFixture::start_with(&PageConfig::default()).await else { return };
    fixture.set_viewport(Viewport::PHONE).await;
    fixture.sign_in().await;
    fixture.wait_visible("#message").await;
    fixture.start_streaming("begun").await;
    let send = fixture.eval("(r => [r.width, r.height, innerHeight - r.bottom])(document.querySelector('#send').getBoundingClientRect())").await;
    assert!(send[0].as_f64() >= Some(44.0) && send[1].as_f64() >= Some(44.0), "large enough for a thumb: {send}");
    assert!(send[2].as_f64() < Some(200.0), "at the bottom: {send}");
    fixture.click_until_text("#send", "article.turn.stopped .receipt-line", "stopped in ").await;
    fixture.wait_send_mode("send").await;

    // The sessions are in a drawer that closes when one is chosen.
    fixture.model.script(ScriptedResponse::silent_mid_stream("elsewhere"));
    let run = fixture.http.send_message("other", "go on").await;
    assert_eq!(fixture.eval("document.querySelector('#rail-toggle').getAttribute('aria-expanded')").await, "false");
    fixture.click("#rail-toggle").await;
    fixture.click_until_text("#sessions [data-session=other]", "article.turn[data-role=assistant]", "elsewhere").await;
    fixture.wait_for("document.querySelector('#rail-toggle').getAttribute('aria-expanded') === 'false'").await;
    fixture.wait_send_mode("stop").await;

    fixture.click("#tabs a[href='#/runs']").await;
    fixture.wait_view("runs").await;
    fixture.wait_visible(&format!("#runs tr[data-run='{run}'] .stop-run")).await;
    fixture.click_until_visible("#tabs a[href='#/agents']", "#agents [data-agent=main] .abort-btn").await;
    fixture.click("#agents [data-agent=main] .abort-btn").await;
    fixture.wait_toast("success", "Model call stopped").await;
    assert_eq!(fixture.http.wait_ended(&run).await["verdict"]["kind"], "aborted");

    let hold = "innerHeight - document.querySelector('#hold').getBoundingClientRect().bottom";
    assert!(fixture.eval(hold).await.as_f64() < Some(10.0), "the hold button is one of the tabs");
    fixture.click_until_visible("#hold", "#hold[aria-checked=true]").await;
    fixture.click_until_visible("#tabs a[href='#/']", "#message").await;
    // Every view fits the width: no sideways scrolling.
    for route in ["#/", "#/runs", "#/agents", "#/approvals", &format!("#/r/{run}")] {
        fixture.go_to(route).await;
        fixture.wait_for("document.documentElement.scrollWidth <= innerWidth").await;
    }
    fixture.assert_no_page_errors(&[]).await;
}
