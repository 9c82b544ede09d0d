//! The receipt line is the same in the terminal and on the page: both are tested against one file of samples. The
//! page's test is `web/test/receipt.test.mjs`.

use quell_client::receipt_line::{amendment_lines, receipt_line};
use quell_protocol::Receipt;
use serde::Deserialize;

#[derive(Deserialize)]
struct Sample {
    name: String,
    receipt: Receipt,
    line: String,
    #[serde(default)]
    amendments: Vec<String>,
}

#[test]
fn the_terminal_says_what_the_page_says() {
    let samples: Vec<Sample> = serde_json::from_str(include_str!("../../../web/test/receipt-lines.json")).unwrap();
    assert!(!samples.is_empty());
    for sample in samples {
        assert_eq!(receipt_line(&sample.receipt), sample.line, "{}", sample.name);
        assert_eq!(amendment_lines(&sample.receipt), sample.amendments, "{}", sample.name);
    }
}
