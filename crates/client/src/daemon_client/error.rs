//! Errors of a request to the daemon. Each text says what happened and what to do.

use quell_protocol::Problem;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon answers, or no address is known.
    #[error("no daemon answers\n  tried: {tried}\n  start one with `quell serve`, or name one with --url or QUELL_URL")]
    NoDaemon {
        /// The addresses that were tried, with the cause of each failure.
        tried: String,
    },
    /// The connection broke during a request or an answer.
    #[error("the connection to {url} was lost: {cause}")]
    ConnectionLost { url: String, cause: String },
    /// The daemon accepts connections but does not answer.
    #[error(
        "the daemon{} does not answer; what was asked for may not have happened\n  `kill -TERM {}` ends it and everything that it runs",
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(),
        pid.map_or("PID".into(), |pid| pid.to_string())
    )]
    Unresponsive {
        /// Process id of the daemon, if known.
        pid: Option<i32>,
    },
    #[error("`{url}` is not the address of a daemon: {problem}")]
    BadUrl { url: String, problem: String },
    #[error(
        "no token for {url}: {tried}\n  give one with --token or QUELL_TOKEN; an admin makes it with `quell token create`"
    )]
    NoToken {
        url: String,
        /// The places that were searched for a token.
        tried: String,
    },
    #[error("the token from {origin} was refused: {problem}\n  give another with --token or QUELL_TOKEN")]
    BadToken {
        /// The flag, variable or file that the token came from.
        origin: String,
        /// The daemon's own words.
        problem: String,
    },
    /// The daemon refused the request.
    #[error("{}", problem_text(.0))]
    Refused(Problem),
    /// The answer is not from a Quell daemon, or from one of another version.
    #[error("{url} gave an answer that is not Quell's ({problem}): is this a quell daemon of the same version?")]
    UnexpectedAnswer {
        url: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// The id cannot be part of a URL path.
    #[error("`{0}` cannot stand in an HTTP path")]
    InvalidPathSegment(String),
}

impl ClientError {
    /// Stable code for programs: the daemon's own code if it answered.
    pub fn code(&self) -> &str {
        match self {
            Self::NoDaemon { .. } => "no_daemon",
            Self::ConnectionLost { .. } => "connection_lost",
            Self::Unresponsive { .. } => "no_answer",
            Self::BadUrl { .. } => "bad_url",
            Self::NoToken { .. } => "no_token",
            Self::BadToken { .. } => "unauthorized",
            Self::Refused(problem) => &problem.code,
            Self::UnexpectedAnswer { .. } => "foreign_answer",
            Self::InvalidPathSegment(_) => "invalid_request",
        }
    }

    /// True when the daemon answered 404.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(problem) if problem.status == 404)
    }

    /// True for errors that may not recur on the next attempt: a broken connection, a full or restarting daemon.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoDaemon { .. } | Self::ConnectionLost { .. } | Self::Unresponsive { .. } => true,
            Self::Refused(problem) => matches!(problem.status, 429 | 502 | 503 | 504),
            Self::BadUrl { .. }
            | Self::NoToken { .. }
            | Self::BadToken { .. }
            | Self::UnexpectedAnswer { .. }
            | Self::InvalidPathSegment(_) => false,
        }
    }
}

fn problem_text(problem: &Problem) -> String {
    let Problem { title, code, .. } = problem;
    let Some(detail) = &problem.detail else { return format!("{title} ({code})") };
    match detail.split_at_checked(title.len()) {
        // The detail begins with the title: do not say it twice.
        Some((start, rest)) if start.eq_ignore_ascii_case(title) => format!("{title} ({code}){rest}"),
        _ => format!("{title} ({code}): {detail}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case::repeats_the_title("new runs are on hold", "New runs are on hold (held)")]
    #[case::begins_with_it("new runs are on hold; lift it", "New runs are on hold (held); lift it")]
    #[case::says_something_else("lift it", "New runs are on hold (held): lift it")]
    fn the_title_is_shown_once(#[case] detail: &str, #[case] shown: &str) {
        let problem = serde_json::json!({"title": "New runs are on hold", "code": "held", "error": "held", "status": 503, "detail": detail});
        assert_eq!(problem_text(&serde_json::from_value(problem).unwrap()), shown);
    }
}
