//! `quell mcp login` and `quell mcp logout`: sign in at MCP servers by OAuth, on the machine of the daemon.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use quell_mcp::{McpConfig, sign_out, start_sign_in};

use crate::config::{self, LoadedConfig};
use crate::runtime::block_on;

pub(crate) const LOGIN_HELP: &str = "\
Example:
  quell mcp login github

Open the printed URL in a browser on this machine: it comes back to a port on 127.0.0.1. From another machine, forward that port
first (ssh -L). The tokens are stored in the data directory (mcp-tokens, mode 0600), where the daemon reads and refreshes them.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum McpCommand {
    /// Sign in at a server with `oauth = true`.
    #[command(after_help = LOGIN_HELP)]
    Login(McpServerArgs),
    /// Delete the stored tokens of a server.
    Logout(McpServerArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct McpServerArgs {
    /// The name of the server's section: [mcp.NAME].
    #[arg(value_name = "NAME")]
    name: String,
    /// The configuration file; else $QUELL_CONFIG, or quell/quell.toml in the XDG config directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(command: &McpCommand) -> anyhow::Result<ExitCode> {
    match command {
        McpCommand::Login(args) => login(args),
        McpCommand::Logout(args) => logout(args),
    }
}

fn login(args: &McpServerArgs) -> anyhow::Result<ExitCode> {
    let loaded = config::load(args.config.as_deref())?;
    let server = find_server(&loaded, &args.name)?;
    let data_dir = config::data_dir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    block_on(&runtime, async {
        let sign_in = start_sign_in(&data_dir, &args.name, server).await.map_err(|why| anyhow!(why))?;
        let mut out = std::io::stdout();
        writeln!(out, "open this URL and agree to it:\n\n  {}\n", sign_in.url())?;
        out.flush()?;
        sign_in.finish().await.map_err(|why| anyhow!("the sign-in failed: {why}"))?;
        writeln!(out, "signed in at the MCP server {}; the next call uses it", args.name)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn logout(args: &McpServerArgs) -> anyhow::Result<ExitCode> {
    let loaded = config::load(args.config.as_deref())?;
    find_server(&loaded, &args.name)?;
    let had_tokens = sign_out(&config::data_dir()?, &args.name).map_err(|why| anyhow!(why))?;
    let text = if had_tokens {
        "signed out; open connections keep their tokens until they end"
    } else {
        "nobody was signed in"
    };
    writeln!(std::io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn find_server<'a>(loaded: &'a LoadedConfig, name: &str) -> anyhow::Result<&'a McpConfig> {
    let servers = &loaded.config.mcp;
    servers.get(name).with_context(|| {
        let names: Vec<&str> = servers.keys().map(String::as_str).collect();
        format!("there is no [mcp.{name}] in the configuration; there are: {}", names.join(", "))
    })
}
