//! Runs a command that starts a process in a session of its own, stops it, and proves that the whole tree is gone.
#![expect(clippy::print_stdout, reason = "an example prints what it shows")]

use std::time::Duration;

use quell_kernel::StopTimeouts;
use quell_process::{CommandSpec, Isolate, OutputSink, WardenExe, Wardens, warden_main};
use quell_protocol::ToolOutputStream;
use quell_scope::{PointProbe, Scope, clock::Clock};

struct Stdout;

impl OutputSink for Stdout {
    fn output(&mut self, _: ToolOutputStream, text: &str) {
        print!("{text}");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // This binary is also the warden of its commands.
    if let Some(code) = warden_main() {
        std::process::exit(if code == std::process::ExitCode::SUCCESS { 0 } else { 1 });
    }
    tokio::runtime::Runtime::new()?.block_on(async {
        let wardens = Wardens::new(WardenExe::ThisProcess, StopTimeouts::default())?;
        let scope = Scope::new(Clock::start(), PointProbe::default());
        let command = CommandSpec {
            argv: ["sh", "-c", "setsid sleep 1000 & echo started; wait"].map(Into::into).to_vec(),
            label: "a detached sleep".to_owned(),
            cwd: "/".into(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            timeout: None,
            output_limit: 1024,
            isolate: Isolate::Auto,
            sandbox: None,
            network: None,
            session_network: None,
        };
        let stop = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            scope.cancel();
        };
        let mut output = Stdout;
        let (end, ()) = tokio::join!(wardens.run(&command, &scope, &mut output), stop);
        let end = end?;
        println!("ended by {:?}, {} more processes ended, leftovers: {:?}", end.how, end.swept, end.leftovers);
        let _released = scope.close().await;
        Ok(())
    })
}
