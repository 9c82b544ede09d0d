//! Everything works without a mouse: sign in, start a session, type, send, stop, list runs, stop one, stop all.

use quell_testkit::browser::Key;

use super::{PageConfig, PageFixture, UNAUTHORIZED_ENTRY};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_reached_and_stopped_with_the_keyboard_alone() {
    let Some(fixture) = PageFixture::start_with(&PageConfig::default()).await else { return };
    fixture.open(fixture.daemon.url()).await;
    fixture.wait_visible("#sign-in").await;
    fixture.tab_until_focused("#token").await;
    fixture.type_text(fixture.daemon.token()).await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_view("chat").await;
    fixture.wait_live().await;

    // As over plain HTTP from another machine, where browsers have no `randomUUID`.
    fixture.run_script("delete Crypto.prototype.randomUUID;", &[]).await;
    fixture.tab_until_focused("#new-session").await;
    assert_focus_visible(&fixture).await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_visible("#message").await;
    fixture.tab_until_focused("#message").await;
    fixture.model.script(ScriptedResponse::silent_mid_stream("begun"));
    fixture.type_text("hello").await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_send_mode("stop").await;
    fixture.wait_text("article.turn[data-role=assistant]", "begun").await;
    fixture.press_key(Key::Escape).await;
    fixture.wait_text("article.turn.stopped .receipt-line", "stopped in ").await;
    fixture.wait_send_mode("send").await;

    for _ in 0..2 {
        fixture.model.script(ScriptedResponse::silent_mid_stream("begun"));
    }
    let (one, two) = (fixture.http.send_message("one", "go").await, fixture.http.send_message("two", "go").await);
    // By the link on the page, not by its address.
    fixture.tab_until_focused("a[href='#/runs']").await;
    assert_focus_visible(&fixture).await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_view("runs").await;
    let stop_one = format!("#runs tr[data-run='{one}'] .stop-run");
    fixture.wait_visible(&stop_one).await;
    fixture.tab_until_focused(&stop_one).await;
    assert_focus_visible(&fixture).await;
    fixture.press_key(Key::Enter).await;
    assert_eq!(fixture.http.wait_ended(&one).await["verdict"]["kind"], "aborted");
    fixture.wait_hidden(&stop_one).await;

    fixture.tab_until_focused("#stop-all").await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_visible("#stop-all-dialog").await;
    // The focus stays inside the dialog.
    for _ in 0..6 {
        let inside = "!!document.activeElement.closest('#stop-all-dialog') || document.activeElement === document.body";
        assert_eq!(fixture.eval(inside).await, true);
        fixture.press_key(Key::Tab).await;
    }
    fixture.tab_until_focused("#stop-all-confirm").await;
    fixture.press_key(Key::Enter).await;
    assert_eq!(fixture.http.wait_ended(&two).await["verdict"]["kind"], "aborted");
    fixture.wait_hidden("#stop-all-dialog").await;
    fixture.wait_for("document.activeElement && document.activeElement !== document.body").await;
    fixture.assert_no_page_errors(&[UNAUTHORIZED_ENTRY]).await;
}

async fn assert_focus_visible(fixture: &PageFixture) {
    let outline =
        "(s => s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1)(getComputedStyle(document.activeElement))";
    let seen = fixture.eval(&format!("document.activeElement.matches(':focus-visible') && {outline}")).await;
    assert_eq!(seen, true, "no outline on {}", fixture.eval("document.activeElement.outerHTML.slice(0, 200)").await);
}
