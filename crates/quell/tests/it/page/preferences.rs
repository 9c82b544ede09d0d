//! Language and colour scheme are remembered.

use quell_testkit::model::ScriptedResponse;
use serde_json::{Value, json};

use super::PageFixture;

const LANGUAGES: [&str; 3] = ["ko", "zh", "en"];

#[tokio::test(flavor = "multi_thread")]
async fn languages_and_colours_are_remembered() {
    let Some(fixture) = PageFixture::start().await else { return };
    let browser = &fixture.browser;
    fixture.sign_in().await;
    let texts: Value = serde_json::from_str(include_str!("../../../../../web/texts.json")).unwrap();
    for language in LANGUAGES {
        select_option(&fixture, "#language", language).await;
        for round in ["at once", "after a reload"] {
            browser.wait_for(&format!("document.documentElement.lang === '{language}'")).await;
            let title = texts["agents.title"][language].as_str().unwrap();
            browser.wait_text("#agents-title", title).await;
            browser.wait_visible("[data-fact=connection][data-state=live]").await;
            assert_eq!(browser.eval(UNTRANSLATED_SCRIPT).await, json!([]), "{language} {round}");
            browser.reload().await;
        }
        check_stop_button_language(&fixture, &texts, language).await;
    }
    browser.wait_for("document.documentElement.dataset.theme").await;
    let before = browser.eval("document.documentElement.dataset.theme").await;
    let other = if before == "light" { "dark" } else { "light" };
    browser.click("#theme").await;
    browser.wait_for(&format!("document.documentElement.dataset.theme === '{other}'")).await;
    browser.reload().await;
    assert_eq!(browser.eval("document.documentElement.dataset.theme").await, other, "set before the first paint");
    browser.wait_visible("[data-fact=connection][data-state=live]").await;
    browser.assert_no_page_errors(&[]).await;
}

/// Lists the keys of elements whose text is empty or still the key itself.
const UNTRANSLATED_SCRIPT: &str = "[...document.querySelectorAll('[data-text]')]
    .filter((e) => e.textContent.trim() === '' || e.textContent.trim() === e.dataset.text).map((e) => e.dataset.text)";

/// Stops a call with the abort button and checks the texts of row B8 in this language.
async fn check_stop_button_language(fixture: &PageFixture, texts: &Value, language: &str) {
    let browser = &fixture.browser;
    fixture.model.script(ScriptedResponse::SilentBeforeHeaders);
    fixture.http.send_message(&format!("in {language}"), "go on").await;
    browser.wait_visible("#agents .abort-btn").await;
    let title = browser.eval("document.querySelector('#agents .abort-btn').title").await;
    assert_eq!(title, texts["agents.abort"][language]);
    browser.click("#agents .abort-btn").await;
    fixture.wait_toast("success", texts["agents.abort.done"][language].as_str().unwrap()).await;
    browser.wait_hidden("#agents .abort-btn").await;
}

async fn select_option(fixture: &PageFixture, list: &str, value: &str) {
    let choose = "const list = document.querySelector(arguments[0]); list.value = arguments[1];
        list.dispatchEvent(new Event('change', { bubbles: true }));";
    fixture.browser.run_script(choose, &[json!(list), json!(value)]).await;
}
