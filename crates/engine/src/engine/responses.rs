//! What the Responses API needs besides runs: its stored responses, and tasks that outlive a request.

use quell_store::ResponseStore;

use super::Engine;

impl Engine {
    /// The stored responses and conversations.
    pub fn responses(&self) -> &dyn ResponseStore {
        self.inner().store.responses()
    }

    /// Runs a task that a shutdown waits for. It must end when its run ends.
    pub fn spawn_until_run_ends(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.inner().runs.spawn(task);
    }
}
