//! Where programs start, and what they are told of the workdir.

use super::*;
use crate::test_engine::shell_call;

impl McpFixture {
    /// The directory below which only the server writes.
    fn server_directory(&self) -> PathBuf {
        self.engine.config().work_dir.join(".servers/test").canonicalize().unwrap()
    }

    /// Current directory, home directory, first argument and the variable `PLACE` of the server.
    async fn place(&self) -> Vec<PathBuf> {
        self.call_and_answer("s", "place").await.split(' ').map(PathBuf::from).collect()
    }
}

/// A planted module would run with the key of the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_starts_where_its_agent_does_not_write() {
    let fixture = McpFixture::start_with(|server| server.sandbox = None).await;
    let place = fixture.place().await;
    let own = fixture.server_directory();
    assert_eq!(place[..2], [own.clone(), own.join("home-main")]);
    let plant = format!("touch {0}/module.py {0}/home-main/module.py; ls -a {0}", own.display());
    fixture.model.script(shell_call(&plant)).script(ScriptedResponse::text("fine"));
    fixture.run_message("s", "plant it").await;
    let told = last_result(&fixture);
    assert!(told.contains("No such file or directory") && !told.contains("home-main\n"), "{told}");
    assert!(!own.join("module.py").exists() && !own.join("home-main/module.py").exists());
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_without_sandbox_starts_there_too() {
    let fixture = McpFixture::start().await;
    let (place, workdir) = (fixture.place().await, fixture.workdir());
    assert_eq!(place[0], fixture.server_directory());
    assert!(!place[1].starts_with(&workdir), "{place:?}");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_told_the_workdir() {
    let fixture = McpFixture::start_with(|server| {
        server.args.push("{workdir}".to_owned());
        server.env.insert("PLACE".to_owned(), "{workdir}/src".to_owned());
    })
    .await;
    let (place, workdir) = (fixture.place().await, fixture.workdir().canonicalize().unwrap());
    assert_eq!(place[2..], [workdir.clone(), workdir.join("src")]);
    assert_eq!(fixture.call_and_answer("s", "roots").await, format!("file://{}/", workdir.display()));
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_may_have_a_program_start_in_the_workdir() {
    let fixture = McpFixture::start_with(|server| server.start_in_workdir = true).await;
    assert_eq!(fixture.place().await[0], fixture.workdir().canonicalize().unwrap());
    fixture.close().await;
}
