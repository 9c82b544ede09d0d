//! Run the unit tests of the page's modules in Node.

use std::path::Path;

use crate::npm_packages;

#[tokio::test]
async fn the_modules_of_the_page_pass_their_own_tests() {
    if npm_packages::is_skipped() {
        return;
    }
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
    let tests: Vec<_> = std::fs::read_dir(web.join("test"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".test.mjs"))
        .collect();
    assert!(!tests.is_empty(), "no tests in {}", web.display());
    let ran =
        npm_packages::program_command("node").arg("--test").args(&tests).current_dir(&web).output().await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && !out.contains("# tests 0"), "{out}\n{err}");
}
