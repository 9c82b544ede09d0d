//! What can go wrong between the visitor and the daemon. Each text says what happened and what to do about it.

use quell_protocol::Problem;

/// Why a call to the daemon did not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nobody answers, or nobody is known who could.
    #[error("no daemon answers\n  tried: {tried}\n  start one with `quell serve`, or name one with --url or QUELL_URL")]
    NoDaemon {
        /// What was tried, and how it failed.
        tried: String,
    },
    /// The daemon was there and is gone, or the connection broke in the middle of an answer.
    #[error("the connection to {url} was lost: {cause}")]
    Lost {
        /// The daemon.
        url: String,
        /// What the system said.
        cause: String,
    },
    /// It is there, and says nothing.
    #[error(
        "the daemon{} does not answer; what was asked for may not have happened\n  `kill -TERM {}` ends it and everything that it runs",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(),
        pid.map_or("PID".into(), |pid| pid.to_string())
    )]
    Silent {
        /// Its process, if that is known.
        pid: Option<i32>,
    },
    /// The address cannot be used.
    #[error("`{url}` is not the address of a daemon: {problem}")]
    BadUrl {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no token to show.
    #[error(
        "no token for {url}: {tried}\n  give one with --token or QUELL_TOKEN; an admin makes it with `quell token create`"
    )]
    NoToken {
        /// The daemon.
        url: String,
        /// Where one was looked for.
        tried: String,
    },
    /// The daemon does not take the token.
    #[error("the token from {origin} was refused: {problem}\n  give another with --token or QUELL_TOKEN")]
    BadToken {
        /// Where the token came from.
        origin: String,
        /// What the daemon said.
        problem: String,
    },
    /// The daemon understood and said no.
    #[error("{}", said(.0))]
    Refused(Problem),
    /// What answered is not a Quell daemon, or one of another age.
    #[error("{url} gave an answer that is not Quell's ({problem}): is this a quell daemon of the same version?")]
    Foreign {
        /// The daemon.
        url: String,
        /// What was odd about the answer.
        problem: String,
    },
    /// An id that no address can hold.
    #[error("`{0}` cannot stand in an HTTP path")]
    Unspeakable(String),
}

impl LinkError {
    /// The stable word for programs: the daemon's own code where it answered.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::NoDaemon { .. } => "no_daemon",
            Self::Lost { .. } => "connection_lost",
            Self::Silent { .. } => "no_answer",
            Self::BadUrl { .. } => "bad_url",
            Self::NoToken { .. } => "no_token",
            Self::BadToken { .. } => "unauthorized",
            Self::Refused(problem) => &problem.code,
            Self::Foreign { .. } => "foreign_answer",
            Self::Unspeakable(_) => "invalid_request",
        }
    }

    /// True when the daemon says that there is no such thing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(problem) if problem.status == 404)
    }

    /// True for what may be gone by the next attempt: a broken connection, a full or restarting daemon.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NoDaemon { .. } | Self::Lost { .. } | Self::Silent { .. } => true,
            Self::Refused(problem) => matches!(problem.status, 429 | 502 | 503 | 504),
            Self::BadUrl { .. }
            | Self::NoToken { .. }
            | Self::BadToken { .. }
            | Self::Foreign { .. }
            | Self::Unspeakable(_) => false,
        }
    }
}

fn said(problem: &Problem) -> String {
    match &problem.detail {
        Some(detail) => format!("{} ({}): {detail}", problem.title, problem.code),
        None => format!("{} ({})", problem.title, problem.code),
    }
}
