//! Which model of a chain takes over when a provider fails.
//!
//! Only a failure before the answer begins counts: a part of an answer may have been shown, and it was paid for.

/// A failure of a provider after which another provider may give the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderFailure {
    /// It has too many requests.
    Overloaded,
    /// The account at the provider has no credit left.
    OutOfCredit,
    /// It cannot be reached, does not answer in time, or fails by itself.
    Lost,
}

/// Whether a part of the answer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerProgress {
    NotBegun,
    Begun,
}

impl ProviderFailure {
    /// The failure that an HTTP status means. `None` if another provider would refuse the request, too.
    pub fn of_status(status: u16) -> Option<Self> {
        match status {
            402 => Some(Self::OutOfCredit),
            429 | 503 | 529 => Some(Self::Overloaded),
            408 | 500..=599 => Some(Self::Lost),
            _ => None,
        }
    }
}

/// The place of the model that takes over, in a chain of `length` models of which `in_use` has failed. `None` if the
/// failure stays.
pub fn next_model(
    in_use: usize,
    length: usize,
    failure: Option<ProviderFailure>,
    answer: AnswerProgress,
) -> Option<usize> {
    let next = in_use.saturating_add(1);
    (failure.is_some() && answer == AnswerProgress::NotBegun && next < length).then_some(next)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(402, Some(ProviderFailure::OutOfCredit))]
    #[case(429, Some(ProviderFailure::Overloaded))]
    #[case(503, Some(ProviderFailure::Overloaded))]
    #[case(529, Some(ProviderFailure::Overloaded))]
    #[case(408, Some(ProviderFailure::Lost))]
    #[case(500, Some(ProviderFailure::Lost))]
    #[case(502, Some(ProviderFailure::Lost))]
    #[case(400, None)]
    #[case(401, None)]
    #[case(404, None)]
    #[case(413, None)]
    #[case(307, None)]
    fn a_status_says_whether_another_provider_may_help(#[case] status: u16, #[case] failure: Option<ProviderFailure>) {
        assert_eq!(ProviderFailure::of_status(status), failure);
    }

    #[rstest]
    #[case::first_of_two(0, 2, Some(1))]
    #[case::first_of_one(0, 1, None)]
    #[case::last_of_three(2, 3, None)]
    #[case::second_of_three(1, 3, Some(2))]
    #[case::no_chain(0, 0, None)]
    fn the_next_one_takes_over_until_none_is_left(
        #[case] in_use: usize,
        #[case] length: usize,
        #[case] next: Option<usize>,
        #[values(ProviderFailure::Overloaded, ProviderFailure::OutOfCredit, ProviderFailure::Lost)]
        failure: ProviderFailure,
    ) {
        assert_eq!(next_model(in_use, length, Some(failure), AnswerProgress::NotBegun), next);
        assert_eq!(next_model(in_use, length, Some(failure), AnswerProgress::Begun), None, "it is shown already");
        assert_eq!(next_model(in_use, length, None, AnswerProgress::NotBegun), None, "all would refuse it");
    }
}
