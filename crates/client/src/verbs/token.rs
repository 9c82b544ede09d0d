//! `quell token`: make, list and revoke tokens.

use quell_protocol::api::{TokenScope, TokenScopes};

use super::table::{Cell, lay_out};
use super::{Exit, Format, VerbError};
use crate::link::Link;
use crate::term::Io;
use crate::words::ago;

/// Arguments of `quell token`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  quell token create ci --scope write\n  quell token create desk --scope write,approve\n  quell token create phone --scope read --json\n  \
    quell token list\n  quell token revoke ci"
)]
pub struct TokenArgs {
    #[command(subcommand)]
    what: TokenVerb,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum TokenVerb {
    /// Make a token; it is shown once and stored hashed
    Create {
        /// Its name; what it does is recorded under this name
        name: String,
        /// What it may do; several with commas
        #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ScopeArg::Write])]
        scope: Vec<ScopeArg>,
    },
    /// List the tokens, without their secrets
    List,
    /// Revoke a token
    Revoke {
        /// Its name
        name: String,
    },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ScopeArg {
    /// Look
    Read,
    /// Send, stop own runs
    Write,
    /// Decide approvals
    Approve,
    /// Sessions with a model address or an MCP address of their own
    Endpoints,
    /// Everything
    Admin,
}

impl From<ScopeArg> for TokenScope {
    fn from(scope: ScopeArg) -> Self {
        match scope {
            ScopeArg::Read => Self::Read,
            ScopeArg::Write => Self::Write,
            ScopeArg::Approve => Self::Approve,
            ScopeArg::Endpoints => Self::Endpoints,
            ScopeArg::Admin => Self::Admin,
        }
    }
}

/// A daemon of an earlier version says only the first.
fn words(scope: impl Into<TokenScope>, scopes: &[TokenScope]) -> String {
    if scopes.is_empty() {
        return scope.into().word().to_owned();
    }
    scopes.iter().map(|scope| scope.word()).collect::<Vec<_>>().join(" ")
}

pub(super) async fn run(link: &Link, args: TokenArgs, io: &mut Io) -> Result<Exit, VerbError> {
    match args.what {
        TokenVerb::Create { name, scope } => {
            let scopes: Vec<TokenScope> = scope.into_iter().map(TokenScope::from).collect();
            let scopes = if let [one] = scopes[..] { TokenScopes::One(one) } else { TokenScopes::Several(scopes) };
            let made = link.create_token(&name, scopes).await?;
            if args.json {
                io.screen.json(&made)?;
            } else {
                // The secret alone on the output, so that it can go straight into a file or a variable.
                io.screen.remark(&format!(
                    "token {} ({}), shown only now:",
                    made.name,
                    words(made.scope, &made.scopes)
                ))?;
                io.screen.line(&made.token)?;
            }
        }
        TokenVerb::List => list(link, args.json.into(), io).await?,
        TokenVerb::Revoke { name } => {
            link.revoke_token(&name).await?;
            if args.json {
                io.screen.json(&serde_json::json!({"name": name, "revoked": true}))?;
            } else {
                io.screen.line(&format!("token {name} is revoked"))?;
            }
        }
    }
    Ok(Exit::Done)
}

async fn list(link: &Link, format: Format, io: &mut Io) -> Result<(), VerbError> {
    let tokens = link.tokens().await?;
    if format == Format::Json {
        io.screen.json(&tokens)?;
        return Ok(());
    }
    if tokens.is_empty() {
        io.screen.remark("no tokens: make one with `quell token create NAME`")?;
        return Ok(());
    }
    let now = jiff::Timestamp::now();
    let rows: Vec<[Cell; 3]> = tokens
        .iter()
        .map(|token| {
            [
                Cell::cut(&token.name, 40),
                Cell::from(words(token.scope, &token.scopes)),
                ago(&token.created_at, now).into(),
            ]
        })
        .collect();
    for line in lay_out(io.screen.out(), ["NAME", "SCOPE", "MADE"], &rows) {
        io.screen.line(&line)?;
    }
    Ok(())
}
