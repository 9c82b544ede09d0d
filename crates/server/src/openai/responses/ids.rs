//! The ids of a response and its items. Each contains the id of the run, so that an item leads to its response.

use quell_protocol::RunId;
use uuid::Uuid;

/// Characters of a run's id without its hyphens.
const RUN_LEN: usize = 32;

/// Characters that tell apart the items that are added to a conversation one after the other.
const RANDOM_LEN: usize = 12;

/// The ids of one response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResponseIds {
    run: String,
}

impl ResponseIds {
    pub(super) fn of_run(run: &RunId) -> Self {
        Self { run: run.as_str().replace('-', "") }
    }

    /// The ids of a conversation.
    pub(super) fn fresh() -> Self {
        Self { run: Uuid::now_v7().simple().to_string() }
    }

    pub(super) fn response(&self) -> String {
        format!("resp_{}", self.run)
    }

    pub(super) fn message(&self) -> String {
        format!("msg_{}", self.run)
    }

    /// 0 for the reasoning of the message, N + 1 for that of its call N.
    pub(super) fn reasoning(&self, number: usize) -> String {
        format!("rs_{}_{number}", self.run)
    }

    pub(super) fn call(&self, number: usize) -> String {
        format!("fc_{}_{number}", self.run)
    }

    /// An item of the request.
    pub(super) fn input(&self, number: usize) -> String {
        format!("item_{}_{number}", self.run)
    }

    pub(super) fn conversation(&self) -> String {
        format!("conv_{}", self.run)
    }

    /// The ids of items that are added to a conversation.
    pub(super) fn added_to(conversation: &str) -> Self {
        let (_, run) = conversation.split_once('_').unwrap_or_default();
        let number = Uuid::now_v7().simple().to_string();
        // The end of the number is random.
        Self { run: format!("{run}_{}", number.get(RUN_LEN - RANDOM_LEN..).unwrap_or_default()) }
    }

    /// The conversation to which an item was given by its client, by its id.
    pub(super) fn conversation_of_item(id: &str) -> Option<String> {
        Self::response_of_item(id).map(|response| response.replace("resp_", "conv_"))
    }

    /// The response to which an item belongs, by its id.
    pub(super) fn response_of_item(id: &str) -> Option<String> {
        let (_, rest) = id.split_once('_')?;
        let run = rest.get(..RUN_LEN)?;
        run.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| format!("resp_{run}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_leads_to_its_response() {
        let run = RunId::parse("0193a7a6-0f3c-7a6b-8a53-5f3c1b0d9e11").unwrap();
        let ids = ResponseIds::of_run(&run);
        for id in [ids.message(), ids.reasoning(1), ids.call(12), ids.input(0)] {
            assert_eq!(ResponseIds::response_of_item(&id), Some(ids.response()), "{id}");
        }
        let conversation = ids.conversation();
        let added = ResponseIds::added_to(&conversation).input(0);
        assert_eq!(ResponseIds::conversation_of_item(&added), Some(conversation));
        for other in ["", "msg_", "msg_68a1", "rs_zz93a7a60f3c7a6b8a535f3c1b0d9e11"] {
            assert_eq!(ResponseIds::response_of_item(other), None, "{other}");
        }
    }
}
