//! `quell token`: create, list and revoke tokens.

use quell_protocol::api::{TokenRow, TokenScope, TokenScopes};
use serde_json::json;

use super::table::CliTableCell;
use super::{Exit, SubcommandContext, SubcommandResult};
use crate::daemon_client::DaemonClient;
use crate::term::CommandIo;
use crate::text_format::relative_age;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  quell token create ci --scope write\n  quell token create desk --scope write,approve\n  quell token create phone --scope read --json\n  \
    quell token list\n  quell token revoke ci"
)]
pub struct TokenArgs {
    #[command(subcommand)]
    what: TokenSubcommand,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum TokenSubcommand {
    /// Create a token; it is shown once and stored hashed
    Create {
        /// The token's name; its actions are recorded under this name
        name: String,
        /// What the token may do; separate several by commas
        #[arg(long, value_enum, value_delimiter = ',', default_values_t = [TokenScopeArg::Write])]
        scope: Vec<TokenScopeArg>,
    },
    /// List the tokens without their secrets
    List,
    /// Revoke a token
    Revoke {
        /// The token's name
        name: String,
    },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum TokenScopeArg {
    /// Read
    Read,
    /// Send messages, stop own runs
    Write,
    /// Decide approvals
    Approve,
    /// Create sessions with their own model or MCP address
    Endpoints,
    /// Read the sessions and runs of everybody
    #[value(name = "read:all")]
    ReadAll,
    /// Read, use, share, reset and delete the sessions of everybody
    #[value(name = "write:all")]
    WriteAll,
    /// Stop every run, and everything at once
    #[value(name = "stop:all")]
    StopAll,
    /// Everything
    Admin,
}

impl From<TokenScopeArg> for TokenScope {
    fn from(scope: TokenScopeArg) -> Self {
        match scope {
            TokenScopeArg::Read => Self::Read,
            TokenScopeArg::Write => Self::Write,
            TokenScopeArg::Approve => Self::Approve,
            TokenScopeArg::Endpoints => Self::Endpoints,
            TokenScopeArg::ReadAll => Self::ReadAll,
            TokenScopeArg::WriteAll => Self::WriteAll,
            TokenScopeArg::StopAll => Self::StopAll,
            TokenScopeArg::Admin => Self::Admin,
        }
    }
}

/// An older daemon sends only `scope`.
fn scopes_text(scope: impl Into<TokenScope>, scopes: &[TokenScope]) -> String {
    if scopes.is_empty() {
        return scope.into().as_str().to_owned();
    }
    scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" ")
}

pub(super) async fn run(client: &DaemonClient, args: TokenArgs, io: &mut CommandIo) -> SubcommandResult {
    let cx = &mut SubcommandContext::new(client, io, args.json);
    match args.what {
        TokenSubcommand::Create { name, scope } => {
            let scopes: Vec<TokenScope> = scope.into_iter().map(TokenScope::from).collect();
            let scopes = if let [one] = scopes[..] { TokenScopes::One(one) } else { TokenScopes::Several(scopes) };
            let made = client.create_token(&name, scopes).await?;
            if !cx.print_json(&made)? {
                // Print only the secret to stdout, so that it can be stored in a file or a variable.
                let scopes = scopes_text(made.scope, &made.scopes);
                cx.io.output.eprint_line(&format!("token {} ({scopes}), shown only now:", made.name))?;
                cx.io.output.print_line(&made.token)?;
            }
        }
        TokenSubcommand::List => return print_tokens(cx).await,
        TokenSubcommand::Revoke { name } => {
            client.revoke_token(&name).await?;
            cx.print_value(&json!({"name": name, "revoked": true}), &format!("token {name} is revoked"))?;
        }
    }
    Ok(Exit::Done)
}

async fn print_tokens(cx: &mut SubcommandContext<'_>) -> SubcommandResult {
    let tokens = cx.client.list_tokens().await?;
    let now = jiff::Timestamp::now();
    let row = |token: &TokenRow| {
        [
            CliTableCell::truncated(&token.name, 40),
            CliTableCell::from(scopes_text(token.scope, &token.scopes)),
            relative_age(&token.created_at, now).into(),
        ]
    };
    let nothing = "no tokens: make one with `quell token create NAME`";
    cx.print_table(&tokens, ["NAME", "SCOPE", "MADE"], row, nothing)
}
