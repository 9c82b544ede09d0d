//! Print a receipt as a table and a time chart of the resources that the run held.

use quell_protocol::receipt::Containment;
use quell_protocol::{Instant, Receipt, Resource, ResourceKind};

use crate::receipt_line::unix_millis;
use crate::text_format::{format_millis, one_line};

const BAR_WIDTH: usize = 40;
/// From this number of rows on, equal rows are merged.
const FOLD_FROM: usize = 24;
const MAX_LABEL_CHARS: usize = 32;

/// Lines of the chart; none when the run held nothing.
pub fn receipt_chart(receipt: &Receipt) -> Vec<String> {
    let rows = chart_rows(receipt);
    if rows.is_empty() {
        return Vec::new();
    }
    let mut lines = chart_table(&rows);
    if let Some(scale) = ChartScale::whole_run(receipt) {
        lines.extend(chart_panel("the whole run", receipt, &rows, scale));
    }
    if let Some(scale) = ChartScale::stop_only(receipt) {
        lines.extend(chart_panel("the stop", receipt, &rows, scale));
    }
    lines
}

/// One resource, or several equal ones.
struct ChartRow<'a> {
    resource: &'a Resource,
    times: usize,
}

fn chart_rows(receipt: &Receipt) -> Vec<ChartRow<'_>> {
    let fold = receipt.resources.len() >= FOLD_FROM;
    let mut rows: Vec<ChartRow<'_>> = Vec::new();
    for resource in &receipt.resources {
        let same = |row: &&mut ChartRow<'_>| {
            let other = row.resource;
            (other.kind, &other.label, &other.how) == (resource.kind, &resource.label, &resource.how)
        };
        match rows.iter_mut().find(same) {
            Some(row) if fold => row.times += 1,
            _ => rows.push(ChartRow { resource, times: 1 }),
        }
    }
    rows
}

impl ChartRow<'_> {
    fn row_name(&self) -> String {
        let label = one_line(&self.resource.label, MAX_LABEL_CHARS);
        let name = format!("{} {label}", kind_name(self.resource.kind));
        if self.times > 1 { format!("{} ×{}", name.trim_end(), self.times) } else { name.trim_end().into() }
    }

    /// Text at the end of the bar: how the resource was released, and what is known about a process.
    fn end_text(&self) -> String {
        let how = one_line(&self.resource.how, MAX_LABEL_CHARS);
        let Some(process) = &self.resource.process else { return how };
        let mut end = match (process.exit_code, process.signal) {
            (Some(code), _) if how == "exited" => format!("exited {code}"),
            (Some(code), _) => format!("{how}, exit {code}"),
            (None, Some(signal)) if how == "exited" => format!("signal {signal}"),
            (None, _) => how,
        };
        end.push_str(&format!(", pid {}", process.pid));
        if process.swept > 0 {
            end.push_str(&format!(" and {} below it", process.swept));
        }
        if let Some(sandbox) = process.sandbox.as_ref().filter(|sandbox| !sandbox.missing.is_empty()) {
            let missing: Vec<&str> = sandbox.missing.iter().map(|missing| missing.layer.description()).collect();
            end.push_str(&format!(", sandbox without {}", missing.join(" and ")));
        }
        // Only a weaker containment than a namespace is named.
        if let Some(held_by) = process.held_by.filter(|held_by| *held_by != Containment::Namespace) {
            end.push_str(&format!(", held by {}", held_by.description()));
        }
        end
    }
}

fn kind_name(kind: ResourceKind) -> &'static str {
    match kind {
        ResourceKind::ModelRequest => "model",
        ResourceKind::Process => "process",
        ResourceKind::McpCall => "mcp",
        ResourceKind::Run => "run",
        ResourceKind::Approval => "approval",
        ResourceKind::Timer => "timer",
        ResourceKind::Permit => "permit",
        ResourceKind::HttpRequest => "http",
        ResourceKind::Task => "task",
        ResourceKind::Hook => "hook",
        ResourceKind::Delivery => "delivery",
    }
}

fn chart_table(rows: &[ChartRow<'_>]) -> Vec<String> {
    let mut cells = vec![["held".to_owned(), "opened".to_owned(), "released".to_owned(), "how".to_owned()]];
    let start = rows.iter().filter_map(|row| unix_millis(&row.resource.opened_at)).reduce(f64::min);
    cells.extend(rows.iter().map(|row| {
        let released = row.resource.released_at.as_ref();
        let released = released.map_or_else(|| "not released".into(), |released| instant_text(released, start));
        [row.row_name(), instant_text(&row.resource.opened_at, start), released, row.end_text()]
    }));
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (held, opened, released) = (width(0), width(1), width(2));
    let line = |[name, from, to, how]: &[String; 4]| format!("{name:held$}  {from:>opened$}  {to:>released$}  {how}");
    cells.iter().map(line).collect()
}

/// Time since the stop was requested, signed; without a stop, time since the first resource was opened.
fn instant_text(instant: &Instant, start: Option<f64>) -> String {
    match (instant.ms, unix_millis(instant), start) {
        (Some(ms), _, _) if ms < 0.0 => format!("-{}", format_millis(-ms)),
        (Some(ms), _, _) if ms > 0.0 => format!("+{}", format_millis(ms)),
        (Some(_), _, _) => format_millis(0.0),
        (None, Some(at), Some(start)) => format_millis(at - start),
        (None, _, _) => one_line(&instant.at, MAX_LABEL_CHARS),
    }
}

/// Time span of the bars, in Unix milliseconds.
#[derive(Clone, Copy)]
struct ChartScale {
    from: f64,
    to: f64,
}

impl ChartScale {
    fn whole_run(receipt: &Receipt) -> Option<Self> {
        let opened =
            receipt.resources.iter().filter_map(|resource| unix_millis(&resource.opened_at)).reduce(f64::min)?;
        Self::from_bounds(opened, unix_millis(&receipt.settled_at)?)
    }

    fn stop_only(receipt: &Receipt) -> Option<Self> {
        Self::from_bounds(unix_millis(receipt.requested_at.as_ref()?)?, unix_millis(&receipt.settled_at)?)
    }

    fn from_bounds(from: f64, to: f64) -> Option<Self> {
        (to > from).then_some(Self { from, to })
    }

    /// Column of a time; times outside the span go to the edge.
    fn column(self, at: f64) -> usize {
        #[expect(clippy::cast_precision_loss, reason = "small constant")]
        let column = (at - self.from) / (self.to - self.from) * BAR_WIDTH as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a saturating cast gives the edge column"
        )]
        let column = column as usize;
        column.min(BAR_WIDTH - 1)
    }
}

/// One bar per row over one time span, with the marks of the stop below.
fn chart_panel(title: &str, receipt: &Receipt, rows: &[ChartRow<'_>], scale: ChartScale) -> Vec<String> {
    let requested = receipt.requested_at.as_ref().and_then(unix_millis);
    let mut lines = vec![String::new(), format!("{title}, {}", format_millis(scale.to - scale.from))];
    let seen: Vec<&ChartRow<'_>> =
        rows.iter().filter(|row| released_ms(row).is_none_or(|at| at >= scale.from)).collect();
    let width = seen.iter().map(|row| row.row_name().chars().count()).max().unwrap_or(0);
    lines.extend(
        seen.iter()
            .map(|row| format!("{:width$}  {}  {}", row.row_name(), chart_bar(row, requested, scale), row.end_text())),
    );
    lines.extend(stop_marks(receipt, scale).map(|(ruler, legend)| format!("{:width$}  {ruler}  {legend}", "")));
    lines
}

fn released_ms(row: &ChartRow<'_>) -> Option<f64> {
    row.resource.released_at.as_ref().and_then(unix_millis)
}

/// Solid until the stop was requested, hatched after it, with an arrow at the end if never released.
fn chart_bar(row: &ChartRow<'_>, requested: Option<f64>, scale: ChartScale) -> String {
    let opened = unix_millis(&row.resource.opened_at).unwrap_or(scale.from);
    let (first, last) = (scale.column(opened), scale.column(released_ms(row).unwrap_or(scale.to)));
    let hatched = requested.map_or(BAR_WIDTH, |at| scale.column(at));
    let held = row.resource.released_at.is_none();
    let mark = |column: usize| match column {
        _ if column < first || column > last => ' ',
        _ if held && column == last => '▶',
        _ if column >= hatched => '▒',
        _ => '━',
    };
    (0..BAR_WIDTH).map(mark).collect()
}

/// Letters below the bars for requested, delivered and settled, with their times.
fn stop_marks(receipt: &Receipt, scale: ChartScale) -> Option<(String, String)> {
    let facts = [
        ('R', "requested", receipt.requested_at.as_ref()),
        ('D', "delivered", receipt.delivered_at.as_ref()),
        ('S', "settled", Some(&receipt.settled_at)),
    ];
    receipt.requested_at.as_ref()?;
    let mut ruler = vec![' '; BAR_WIDTH];
    let mut legend = Vec::new();
    for (letter, word, instant) in facts {
        let Some(instant) = instant else { continue };
        if let Some(at) = unix_millis(instant)
            && let Some(place) = ruler.get_mut(scale.column(at))
            && *place == ' '
        {
            *place = letter;
        }
        legend.push(format!("{letter} {word} {}", instant_text(instant, None)));
    }
    Some((ruler.into_iter().collect(), legend.join(" · ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::receipts;

    #[test]
    fn a_stopped_run_is_drawn_as_a_table_and_two_panels() {
        let picture = receipt_chart(&receipts::stopped_receipt()).join("\n");
        assert_eq!(
            picture,
            "\
held                opened  released  how
permit              -1.2 s    +12 ms  finished
model demo/chat       -1 s   +0.4 ms  closed
process sleep 600  -600 ms    +11 ms  term, pid 4242 and 2 below it

the whole run, 1.2 s
permit             ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━▒  finished
model demo/chat          ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━▒  closed
process sleep 600                     ━━━━━━━━━━━━━━━━━━━━▒  term, pid 4242 and 2 below it
                                                          R  R requested 0 ms · D delivered +0.2 ms · S settled +12 ms

the stop, 12 ms
permit             ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒   finished
model demo/chat    ▒▒                                        closed
process sleep 600  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒     term, pid 4242 and 2 below it
                   R                                      S  R requested 0 ms · D delivered +0.2 ms · S settled +12 ms"
        );
    }

    #[test]
    fn an_unreleased_resource_is_drawn_to_the_edge() {
        let picture = receipt_chart(&receipts::leftover_receipt());
        let row = picture.iter().find(|line| line.contains('▶')).unwrap();
        assert!(row.starts_with("process sudo sleep") && row.ends_with("held, pid 4242"), "{row}");
        assert!(picture.iter().any(|line| line.contains("not released")));
    }

    #[test]
    fn many_equal_rows_are_folded_and_few_are_not() {
        let mut receipt = receipts::completed_receipt();
        let row = receipt.resources[0].clone();
        receipt.resources = vec![row.clone(); FOLD_FROM - 1];
        assert_eq!(chart_rows(&receipt).len(), FOLD_FROM - 1);
        receipt.resources.push(row);
        assert_eq!(chart_rows(&receipt).len(), 1);
        assert!(receipt_chart(&receipt)[1].contains("×24"));
    }

    #[test]
    fn a_run_that_held_nothing_has_no_picture() {
        assert!(receipt_chart(&receipts::withdrawn_receipt()).is_empty());
    }
}
