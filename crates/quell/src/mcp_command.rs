//! `quell mcp`: sign in at MCP servers by OAuth, and show their resources and prompts, on the machine of the daemon.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use quell_client::text_format::escape_invisible;
use quell_engine::agent::mcp_directories;
use quell_mcp::{Mcp, McpBrowseAnswer, McpBrowseRequest, McpConfig, McpSettings, browse, sign_out, start_sign_in};
use quell_process::{WardenExe, Wardens};
use quell_protocol::mcp::{McpContentRequest, McpListKind};
use quell_scope::clock::Clock;

use crate::config::{self, LoadedConfig};
use crate::runtime::block_on;

pub(crate) const MCP_HELP: &str = "\
Without a subcommand it is an MCP server for the program that starts it: a client of the running daemon, with its agents as tools.
When that program closes the input, the calls that are not answered are stopped.

Configuration of an MCP client:
  {\"mcpServers\": {\"quell\": {\"command\": \"quell\", \"args\": [\"mcp\"]}}}";

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
    /// List the resources of a server, or print one.
    #[command(after_help = "Examples:\n  quell mcp resources notes\n  quell mcp resources notes notes://today")]
    Resources {
        #[command(flatten)]
        server: McpServerArgs,
        /// The URI of the resource to print.
        #[arg(value_name = "URI")]
        uri: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the prompts of a server, or print one with its arguments filled in.
    #[command(after_help = "Examples:\n  quell mcp prompts notes\n  quell mcp prompts notes review topic=parsers")]
    Prompts {
        #[command(flatten)]
        server: McpServerArgs,
        /// The name of the prompt to print.
        #[arg(value_name = "PROMPT")]
        prompt: Option<String>,
        /// Its arguments.
        #[arg(value_name = "NAME=VALUE", value_parser = parse_argument)]
        arguments: Vec<(String, String)>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
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
        McpCommand::Resources { server, uri, json } => {
            let content = uri.clone().map(McpContentRequest::Resource);
            show(server, browse_request(McpListKind::Resources, content), *json)
        }
        McpCommand::Prompts { server, prompt, arguments, json } => {
            let content = prompt
                .clone()
                .map(|name| McpContentRequest::Prompt { name, arguments: arguments.iter().cloned().collect() });
            show(server, browse_request(McpListKind::Prompts, content), *json)
        }
    }
}

fn browse_request(kind: McpListKind, content: Option<McpContentRequest>) -> McpBrowseRequest {
    content.map_or(McpBrowseRequest::List(kind), McpBrowseRequest::Content)
}

fn parse_argument(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Starts the server as the user of this command, asks it and ends it.
fn show(args: &McpServerArgs, request: McpBrowseRequest, as_json: bool) -> anyhow::Result<ExitCode> {
    let loaded = config::load(args.config.as_deref())?;
    find_server(&loaded, &args.name)?;
    if let Some(problem) = loaded.writable_start_of(&args.name, &config::data_dir()?) {
        // It would run with the rights of the person who typed this command.
        bail!("{problem}; ask the daemon for it: GET /api/mcp/resources, or `/resources` in a chat");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let answer = block_on(&runtime, async {
        let (times, data_dir) = (loaded.stop_times(), config::data_dir()?);
        let wardens = Wardens::new(WardenExe::ThisProcess, times).context("a warden cannot be started")?;
        let settings = McpSettings {
            servers: loaded.config.mcp.clone(),
            wardens,
            environment: quell_process::base_environment(std::env::vars_os()),
            directories: mcp_directories(&config::work_dir(&data_dir)),
            data_dir,
            times,
            clock: Clock::start(),
        };
        Ok::<_, anyhow::Error>(browse(&Mcp::new(settings)?, &args.name, &std::env::current_dir()?, request).await?)
    })?;
    let mut out = std::io::stdout();
    match answer {
        McpBrowseAnswer::Items(items) if as_json => writeln!(out, "{}", serde_json::to_string_pretty(&items)?)?,
        McpBrowseAnswer::Text(text) if as_json => writeln!(out, "{}", serde_json::json!({"text": text}))?,
        McpBrowseAnswer::Items(items) if items.is_empty() => writeln!(std::io::stderr(), "there are none")?,
        McpBrowseAnswer::Items(items) => {
            for item in items {
                let line = format!("{}  {}", item.command_form(), item.description);
                writeln!(out, "{}", escape_invisible(&line).replace('\n', " "))?;
            }
        }
        McpBrowseAnswer::Text(text) => writeln!(out, "{}", escape_invisible(&text))?,
    }
    Ok(ExitCode::SUCCESS)
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
    let data_dir = config::data_dir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let had_tokens = block_on(&runtime, sign_out(&data_dir, &args.name)).map_err(|why| anyhow!(why))?;
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
