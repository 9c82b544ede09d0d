//! What a run is for, besides that it ends with a receipt.

use quell_kernel::memory::consolidation::Exchange;

use crate::channel::Errand;

/// What a run is for.
#[derive(Debug, Clone)]
pub enum Task {
    /// Its message is answered.
    Answer,
    /// Its message is answered, and the answer carried to the chat network that the message came from.
    Errand(Errand),
    /// What is worth remembering of this exchange is written down.
    Consolidation(Exchange),
}

impl Task {
    /// What it has to do with a chat network.
    #[must_use]
    pub fn errand(&self) -> Option<&Errand> {
        match self {
            Self::Errand(errand) => Some(errand),
            Self::Answer | Self::Consolidation(_) => None,
        }
    }
}
