//! The executable from which the tests of this crate start wardens, and daemons that can be killed or stopped. Not part
//! of the product.
#![expect(clippy::print_stdout, reason = "the test reads its output")]

mod probe;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::time::Duration;

use quell_kernel::StopTimeouts;
use quell_process::{CommandSpec, Isolate, OutputSink, WardenExe, Wardens, harden_daemon, warden_main};
use quell_protocol::ToolOutputStream;
use quell_scope::clock::Clock;
use quell_scope::{PointProbe, Scope};
use rustix::process::Uid;

fn main() -> ExitCode {
    if let Some(code) = warden_main() {
        return code;
    }
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Some((mode, argv)) = args.split_first() else { return ExitCode::from(2) };
    let work = async {
        match mode.to_str() {
            Some("daemon") => daemon(argv, Isolate::None).await,
            Some("isolating-daemon") => daemon(argv, Isolate::Pid).await,
            Some("limited-daemon") => limited_daemon(argv, Isolate::None).await,
            Some("limited-isolating-daemon") => limited_daemon(argv, Isolate::Pid).await,
            Some("descriptors") => descriptors(argv).await,
            Some("probe") => Ok(run_probe(argv)),
            Some("sudo") => sudo(argv),
            _ => Ok(ExitCode::from(2)),
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(work)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::from(3)
        }
    }
}

type ModeResult = Result<ExitCode, Box<dyn std::error::Error>>;

/// Runs one command under a hardened daemon. Prints its output and exits with its exit code.
async fn daemon(argv: &[OsString], isolate: Isolate) -> ModeResult {
    let wardens = Wardens::new(WardenExe::ThisProcess, StopTimeouts::default())?;
    harden_daemon()?;
    let end = wardens.run(&spec(argv, isolate)?, &scope(), &mut StdoutSink).await?;
    for leftover in &end.leftovers {
        println!("leftover: {leftover}");
    }
    let code = end.code.and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(4)))
}

/// As [`daemon`], with a lifetime limit: nanoseconds of `CLOCK_BOOTTIME` before the command.
async fn limited_daemon(argv: &[OsString], isolate: Isolate) -> ModeResult {
    let (until, argv) = argv.split_first().ok_or("no limit")?;
    let wardens = Wardens::new(WardenExe::ThisProcess, StopTimeouts::default())?;
    harden_daemon()?;
    let until = until.to_str().and_then(|text| text.parse().ok()).ok_or("not a number")?;
    wardens.lifetime_limit().extend(Duration::from_nanos(until));
    let end = wardens.run(&spec(argv, isolate)?, &scope(), &mut StdoutSink).await?;
    println!("ended by the limit: {}, leftovers: {}", end.ended_by_lifetime_limit, end.leftovers.len());
    Ok(ExitCode::SUCCESS)
}

/// Runs commands one after the other. Fails unless each leaves as many open descriptors as the first one.
async fn descriptors(scripts: &[OsString]) -> ModeResult {
    let wardens = Wardens::new(WardenExe::ThisProcess, StopTimeouts::default())?;
    let mut counts = Vec::new();
    for script in scripts {
        let argv = ["sh".into(), "-c".into(), script.clone()];
        wardens.run(&spec(&argv, Isolate::None)?, &scope(), &mut StdoutSink).await?;
        counts.push(std::fs::read_dir("/proc/self/fd")?.count());
    }
    println!("{counts:?}");
    counts.dedup();
    Ok(ExitCode::from(u8::from(counts.len() != 1)))
}

/// Tries one system call and says how it ended: exit code 0 if it is permitted, else 1.
fn run_probe(argv: &[OsString]) -> ExitCode {
    let argument = |index: usize| argv.get(index).and_then(|argument| argument.to_str());
    match probe::probe(argument(0).unwrap_or_default(), argument(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes root in all user ids, as a set-user-id binary of root may, and executes a command.
fn sudo(argv: &[OsString]) -> ModeResult {
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    let (program, args) = argv.split_first().ok_or("no command")?;
    #[expect(clippy::disallowed_methods, reason = "replaces this process by the test's command")]
    let error = std::process::Command::new(program).args(args).exec();
    Err(error.into())
}

fn spec(argv: &[OsString], isolate: Isolate) -> std::io::Result<CommandSpec> {
    Ok(CommandSpec {
        argv: argv.to_vec(),
        label: "the daemon's command".to_owned(),
        cwd: std::env::current_dir()?,
        env: std::env::vars_os().collect(),
        timeout: None,
        output_limit: 1024,
        isolate,
        sandbox: None,
        network: None,
        session_network: None,
    })
}

fn scope() -> Scope {
    Scope::new(Clock::start(), PointProbe::default())
}

struct StdoutSink;

impl OutputSink for StdoutSink {
    fn output(&mut self, _: ToolOutputStream, text: &str) {
        print!("{text}");
        let _ = std::io::Write::flush(&mut std::io::stdout());
    }
}
