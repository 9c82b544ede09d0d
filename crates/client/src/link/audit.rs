//! The list of who did what, read to its end.

use quell_protocol::api::List;
use quell_protocol::audit::AuditRow;
use reqwest::Method;

use super::calls::ListOf;
use super::{Link, Span};

/// Rows of a page.
const PAGE: &str = "1000";

impl Link {
    /// All entries behind number `after`, the oldest first.
    ///
    /// # Errors
    /// Every [`LinkError`](super::LinkError).
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn audit(&self, after: u64) -> ListOf<AuditRow> {
        let (mut rows, mut after) = (Vec::new(), after);
        loop {
            let from = after.to_string();
            let request = self.request(Method::GET, &["api", "audit"], &[("after", &from), ("limit", PAGE)])?;
            let page: List<AuditRow> = self.ask(request, Span::Ordinary).await?;
            rows.extend(page.items);
            match page.next_cursor.map(|next| next.parse::<u64>()) {
                // Numbers rise, so that a list cannot lead in circles.
                Some(Ok(next)) if next > after => after = next,
                Some(_) => return Err(self.foreign("its list does not go on".into())),
                None => return Ok(rows),
            }
        }
    }
}
