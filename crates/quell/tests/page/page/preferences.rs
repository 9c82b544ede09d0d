//! Language and colour scheme are remembered.

use super::PageFixture;
use crate::prelude::*;

const LANGUAGES: [&str; 3] = ["ko", "zh", "en"];

#[tokio::test(flavor = "multi_thread")]
async fn languages_and_colours_are_remembered() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    let texts: Value = serde_json::from_str(include_str!("../../../../../web/texts.json")).unwrap();
    for language in LANGUAGES {
        let choose = "const list = document.querySelector('#language'); list.value = arguments[0];
            list.dispatchEvent(new Event('change', { bubbles: true }));";
        fixture.run_script(choose, &[json!(language)]).await;
        for round in ["at once", "after a reload"] {
            fixture.wait_for(&format!("document.documentElement.lang === '{language}'")).await;
            let title = texts["agents.title"][language].as_str().unwrap();
            fixture.wait_text("#agents-title", title).await;
            fixture.wait_live().await;
            assert_eq!(fixture.eval(UNTRANSLATED_SCRIPT).await, json!([]), "{language} {round}");
            fixture.reload().await;
        }
        check_stop_button_language(&fixture, &texts, language).await;
    }
    fixture.wait_for("document.documentElement.dataset.theme").await;
    let before = fixture.eval("document.documentElement.dataset.theme").await;
    let other = if before == "light" { "dark" } else { "light" };
    fixture.click("#theme").await;
    fixture.wait_for(&format!("document.documentElement.dataset.theme === '{other}'")).await;
    fixture.reload().await;
    assert_eq!(fixture.eval("document.documentElement.dataset.theme").await, other, "set before the first paint");
    fixture.wait_live().await;
    fixture.assert_no_page_errors(&[]).await;
}

/// Lists the keys of elements whose text is empty or still the key itself.
const UNTRANSLATED_SCRIPT: &str = "[...document.querySelectorAll('[data-text]')]
    .filter((e) => e.textContent.trim() === '' || e.textContent.trim() === e.dataset.text).map((e) => e.dataset.text)";

/// Stops a call with the abort button and checks the texts of row B8 in this language.
async fn check_stop_button_language(fixture: &PageFixture, texts: &Value, language: &str) {
    fixture.model.script(ScriptedResponse::SilentBeforeHeaders);
    fixture.http.send_message(&format!("in {language}"), "go on").await;
    fixture.wait_visible("#agents .abort-btn").await;
    let title = fixture.eval("document.querySelector('#agents .abort-btn').title").await;
    assert_eq!(title, texts["agents.abort"][language]);
    fixture.click("#agents .abort-btn").await;
    fixture.wait_toast("success", texts["agents.abort.done"][language].as_str().unwrap()).await;
    fixture.wait_hidden("#agents .abort-btn").await;
}
