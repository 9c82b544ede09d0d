//! The receipt as a picture for a terminal: a table of what the run held, and when it gave each thing back.

use quell_protocol::receipt::Containment;
use quell_protocol::{Instant, Receipt, Resource, ResourceKind};

use crate::receipt_line::wall_ms;
use crate::words::{millis, one_line};

/// Width of the bars in characters.
const BAR: usize = 40;
/// From this many rows on, equal ones are folded.
const FOLD_FROM: usize = 24;
const MOST_LABEL: usize = 32;

/// The picture, line by line. Empty when the run held nothing.
#[must_use]
pub fn receipt_picture(receipt: &Receipt) -> Vec<String> {
    let rows = rows(receipt);
    if rows.is_empty() {
        return Vec::new();
    }
    let mut lines = table(&rows);
    if let Some(scale) = Scale::whole(receipt) {
        lines.extend(panel("the whole run", receipt, &rows, scale));
    }
    if let Some(scale) = Scale::stop(receipt) {
        lines.extend(panel("the stop", receipt, &rows, scale));
    }
    lines
}

/// One row: a thing that the run held, or several equal ones.
struct Row<'a> {
    resource: &'a Resource,
    times: usize,
}

fn rows(receipt: &Receipt) -> Vec<Row<'_>> {
    let fold = receipt.resources.len() >= FOLD_FROM;
    let mut rows: Vec<Row<'_>> = Vec::new();
    for resource in &receipt.resources {
        let same = |row: &&mut Row<'_>| {
            let other = row.resource;
            (other.kind, &other.label, &other.how) == (resource.kind, &resource.label, &resource.how)
        };
        match rows.iter_mut().find(same) {
            Some(row) if fold => row.times += 1,
            _ => rows.push(Row { resource, times: 1 }),
        }
    }
    rows
}

impl Row<'_> {
    fn name(&self) -> String {
        let label = one_line(&self.resource.label, MOST_LABEL);
        let name = format!("{} {label}", kind_word(self.resource.kind));
        if self.times > 1 { format!("{} ×{}", name.trim_end(), self.times) } else { name.trim_end().into() }
    }

    /// The word at the end of the bar: how it was given back, and what is known about a process.
    fn end(&self) -> String {
        let how = one_line(&self.resource.how, MOST_LABEL);
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
        // A namespace is the rule; what is weaker is said.
        if let Some(held_by) = process.held_by.filter(|held_by| *held_by != Containment::Namespace) {
            end.push_str(&format!(", held by {}", held_by.words()));
        }
        end
    }
}

fn kind_word(kind: ResourceKind) -> &'static str {
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

fn table(rows: &[Row<'_>]) -> Vec<String> {
    let mut cells = vec![["held".to_owned(), "opened".to_owned(), "released".to_owned(), "how".to_owned()]];
    let start = rows.iter().filter_map(|row| wall_ms(&row.resource.opened_at)).reduce(f64::min);
    cells.extend(rows.iter().map(|row| {
        let released = row.resource.released_at.as_ref();
        let released = released.map_or_else(|| "not released".into(), |released| distance(released, start));
        [row.name(), distance(&row.resource.opened_at, start), released, row.end()]
    }));
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (held, opened, released) = (width(0), width(1), width(2));
    let line = |[name, from, to, how]: &[String; 4]| format!("{name:held$}  {from:>opened$}  {to:>released$}  {how}");
    cells.iter().map(line).collect()
}

/// Time from the stop's request, signed, where there was one; else from the beginning.
fn distance(instant: &Instant, start: Option<f64>) -> String {
    match (instant.ms, wall_ms(instant), start) {
        (Some(ms), _, _) if ms < 0.0 => format!("-{}", millis(-ms)),
        (Some(ms), _, _) if ms > 0.0 => format!("+{}", millis(ms)),
        (Some(_), _, _) => millis(0.0),
        (None, Some(at), Some(start)) => millis(at - start),
        (None, _, _) => one_line(&instant.at, MOST_LABEL),
    }
}

/// What the width of the bars stands for, on the wall clock in milliseconds.
#[derive(Clone, Copy)]
struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    fn whole(receipt: &Receipt) -> Option<Self> {
        let opened = receipt.resources.iter().filter_map(|resource| wall_ms(&resource.opened_at)).reduce(f64::min)?;
        Self::of(opened, wall_ms(&receipt.settled_at)?)
    }

    fn stop(receipt: &Receipt) -> Option<Self> {
        Self::of(wall_ms(receipt.requested_at.as_ref()?)?, wall_ms(&receipt.settled_at)?)
    }

    fn of(from: f64, to: f64) -> Option<Self> {
        (to > from).then_some(Self { from, to })
    }

    /// The column of a time; what lies outside stands at the edge.
    fn column(self, at: f64) -> usize {
        #[expect(clippy::cast_precision_loss, reason = "a small constant")]
        let column = (at - self.from) / (self.to - self.from) * BAR as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast saturates, and edges are meant"
        )]
        let column = column as usize;
        column.min(BAR - 1)
    }
}

/// One bar per row over one span of time, with the marks of the stop below.
fn panel(title: &str, receipt: &Receipt, rows: &[Row<'_>], scale: Scale) -> Vec<String> {
    let requested = receipt.requested_at.as_ref().and_then(wall_ms);
    let mut lines = vec![String::new(), format!("{title}, {}", millis(scale.to - scale.from))];
    let seen: Vec<&Row<'_>> = rows.iter().filter(|row| released(row).is_none_or(|at| at >= scale.from)).collect();
    let width = seen.iter().map(|row| row.name().chars().count()).max().unwrap_or(0);
    lines
        .extend(seen.iter().map(|row| format!("{:width$}  {}  {}", row.name(), bar(row, requested, scale), row.end())));
    lines.extend(marks(receipt, scale).map(|(ruler, legend)| format!("{:width$}  {ruler}  {legend}", "")));
    lines
}

fn released(row: &Row<'_>) -> Option<f64> {
    row.resource.released_at.as_ref().and_then(wall_ms)
}

/// Solid until the stop was requested, hatched behind it, open at the end for what was never released.
fn bar(row: &Row<'_>, requested: Option<f64>, scale: Scale) -> String {
    let opened = wall_ms(&row.resource.opened_at).unwrap_or(scale.from);
    let (first, last) = (scale.column(opened), scale.column(released(row).unwrap_or(scale.to)));
    let hatched = requested.map_or(BAR, |at| scale.column(at));
    let held = row.resource.released_at.is_none();
    let mark = |column: usize| match column {
        _ if column < first || column > last => ' ',
        _ if held && column == last => '▶',
        _ if column >= hatched => '▒',
        _ => '━',
    };
    (0..BAR).map(mark).collect()
}

/// The three facts of a stop as letters under the bars, with their times.
fn marks(receipt: &Receipt, scale: Scale) -> Option<(String, String)> {
    let facts = [
        ('R', "requested", receipt.requested_at.as_ref()),
        ('D', "delivered", receipt.delivered_at.as_ref()),
        ('S', "settled", Some(&receipt.settled_at)),
    ];
    receipt.requested_at.as_ref()?;
    let mut ruler = vec![' '; BAR];
    let mut legend = Vec::new();
    for (letter, word, instant) in facts {
        let Some(instant) = instant else { continue };
        if let Some(at) = wall_ms(instant)
            && let Some(place) = ruler.get_mut(scale.column(at))
            && *place == ' '
        {
            *place = letter;
        }
        legend.push(format!("{letter} {word} {}", distance(instant, None)));
    }
    Some((ruler.into_iter().collect(), legend.join(" · ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::receipts;

    #[test]
    fn a_stopped_run_is_drawn_as_a_table_and_two_panels() {
        let picture = receipt_picture(&receipts::stopped()).join("\n");
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
    fn what_was_never_released_runs_open_to_the_edge() {
        let picture = receipt_picture(&receipts::leftover());
        let row = picture.iter().find(|line| line.contains('▶')).unwrap();
        assert!(row.starts_with("process sudo sleep") && row.ends_with("held, pid 4242"), "{row}");
        assert!(picture.iter().any(|line| line.contains("not released")));
    }

    #[test]
    fn many_equal_rows_are_folded_and_few_are_not() {
        let mut receipt = receipts::completed();
        let row = receipt.resources[0].clone();
        receipt.resources = vec![row.clone(); FOLD_FROM - 1];
        assert_eq!(rows(&receipt).len(), FOLD_FROM - 1);
        receipt.resources.push(row);
        assert_eq!(rows(&receipt).len(), 1);
        assert!(receipt_picture(&receipt)[1].contains("×24"));
    }

    #[test]
    fn a_run_that_held_nothing_has_no_picture() {
        assert!(receipt_picture(&receipts::withdrawn()).is_empty());
    }
}
