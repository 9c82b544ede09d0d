//! Read the audit log page by page.

use quell_protocol::api::Page;
use quell_protocol::audit::AuditRow;
use reqwest::Method;

use super::endpoints::ListResult;
use super::{ClientRequestTimeout, DaemonClient};

const AUDIT_PAGE_ROWS: &str = "1000";

impl DaemonClient {
    /// Lists all entries with a number above `after`, oldest first.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn list_audit_entries(&self, after: u64) -> ListResult<AuditRow> {
        let (mut rows, mut after) = (Vec::new(), after);
        loop {
            let from = after.to_string();
            let request =
                self.build_request(Method::GET, &["api", "audit"], &[("after", &from), ("limit", AUDIT_PAGE_ROWS)])?;
            let page: Page<AuditRow> = self.fetch_json(request, ClientRequestTimeout::Default).await?;
            rows.extend(page.items);
            match page.next_cursor.map(|next| next.parse::<u64>()) {
                // Numbers must rise, so that a list cannot loop.
                Some(Ok(next)) if next > after => after = next,
                Some(_) => return Err(self.unexpected_answer("its list does not advance".into())),
                None => return Ok(rows),
            }
        }
    }
}
