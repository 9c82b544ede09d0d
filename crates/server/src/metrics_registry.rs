//! Collect the metrics that the macros of the `metrics` crate record, and print them in the Prometheus text format,
//! version 0.0.4.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tokio::time::Instant;

/// Time from the request of a stop to its proven end; the only metric with buckets.
pub(crate) const STOP_SECONDS: &str = "quell_stop_seconds";
/// Bucket bounds of [`STOP_SECONDS`], in seconds. A stop takes milliseconds, and is abandoned after some seconds.
const STOP_BUCKETS: &[f64] = &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// Quantiles of a distribution without buckets.
const QUANTILES: [f64; 7] = [0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0];
/// Quantiles cover the values of this time.
const QUANTILE_WINDOW: Duration = Duration::from_secs(60);
/// Most values that are kept for quantiles.
const MAX_RECENT_VALUES: usize = 4096;

/// All metrics of the process, once it is the recorder of the `metrics` crate. Clones share them.
#[derive(Clone, Default)]
pub struct MetricsRegistry(Arc<Mutex<MetricFamilies>>);

#[derive(Default)]
struct MetricFamilies {
    help: BTreeMap<String, SharedString>,
    counters: SeriesTable<AtomicU64>,
    /// Bits of an `f64`.
    gauges: SeriesTable<AtomicU64>,
    distributions: SeriesTable<Distribution>,
}

/// By the name of a metric, then by its printed labels.
type SeriesTable<T> = BTreeMap<String, BTreeMap<String, Arc<T>>>;

struct Distribution(Mutex<DistributionState>);

struct DistributionState {
    sum: f64,
    count: u64,
    values: DistributionValues,
}

enum DistributionValues {
    /// How many values are at most as large as each bound of [`STOP_BUCKETS`].
    Buckets(Vec<u64>),
    Recent(VecDeque<(Instant, f64)>),
}

impl MetricsRegistry {
    /// Prints all metrics that have a value.
    pub fn render(&self) -> String {
        let families = self.lock();
        let mut out = String::new();
        for (name, series) in &families.counters {
            families.print_header(&mut out, name, "counter");
            for (labels, value) in series {
                print_sample(&mut out, name, labels, value.load(Ordering::Acquire));
            }
            out.push('\n');
        }
        for (name, series) in &families.gauges {
            families.print_header(&mut out, name, "gauge");
            for (labels, value) in series {
                print_sample(&mut out, name, labels, f64::from_bits(value.load(Ordering::Acquire)));
            }
            out.push('\n');
        }
        for (name, series) in &families.distributions {
            families.print_header(&mut out, name, if name == STOP_SECONDS { "histogram" } else { "summary" });
            for (labels, distribution) in series {
                distribution.lock().print(&mut out, name, labels);
            }
            out.push('\n');
        }
        out
    }

    fn describe(&self, name: &KeyName, help: SharedString) {
        self.lock().help.entry(name.as_str().to_owned()).or_insert(help);
    }

    fn lock(&self) -> MutexGuard<'_, MetricFamilies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder for MetricsRegistry {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(find_or_create(&mut self.lock().counters, key, AtomicU64::default))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(find_or_create(&mut self.lock().gauges, key, AtomicU64::default))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(find_or_create(&mut self.lock().distributions, key, || Distribution::new(key.name())))
    }
}

fn find_or_create<T>(table: &mut SeriesTable<T>, key: &Key, create: impl FnOnce() -> T) -> Arc<T> {
    let series = table.entry(key.name().to_owned()).or_default();
    Arc::clone(series.entry(print_labels(key)).or_insert_with(|| Arc::new(create())))
}

impl MetricFamilies {
    fn print_header(&self, out: &mut String, name: &str, kind: &str) {
        if let Some(help) = self.help.get(name) {
            print(out, format_args!("# HELP {name} {}\n", escape(help, &['\\', '\n'])));
        }
        print(out, format_args!("# TYPE {name} {kind}\n"));
    }
}

impl Distribution {
    fn new(name: &str) -> Self {
        let values = match name {
            STOP_SECONDS => DistributionValues::Buckets(vec![0; STOP_BUCKETS.len()]),
            _ => DistributionValues::Recent(VecDeque::new()),
        };
        Self(Mutex::new(DistributionState { sum: 0.0, count: 0, values }))
    }

    fn lock(&self) -> MutexGuard<'_, DistributionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HistogramFn for Distribution {
    fn record(&self, value: f64) {
        let mut state = self.lock();
        state.sum += value;
        state.count += 1;
        match &mut state.values {
            DistributionValues::Buckets(counts) => {
                let reached = counts.iter_mut().zip(STOP_BUCKETS).filter(|(_, bound)| value <= **bound);
                reached.for_each(|(count, _)| *count += 1);
            }
            DistributionValues::Recent(recent) => {
                remove_old_values(recent);
                if recent.len() == MAX_RECENT_VALUES {
                    recent.pop_front();
                }
                recent.push_back((Instant::now(), value));
            }
        }
    }
}

impl DistributionState {
    fn print(&mut self, out: &mut String, name: &str, labels: &str) {
        let separator = if labels.is_empty() { "" } else { "," };
        match &mut self.values {
            DistributionValues::Buckets(counts) => {
                let name = format!("{name}_bucket");
                for (bound, count) in STOP_BUCKETS.iter().zip(counts) {
                    print_sample(out, &name, &format!("{labels}{separator}le=\"{bound}\""), count);
                }
                print_sample(out, &name, &format!("{labels}{separator}le=\"+Inf\""), self.count);
            }
            DistributionValues::Recent(recent) => {
                remove_old_values(recent);
                let mut sorted: Vec<f64> = recent.iter().map(|(_, value)| *value).collect();
                sorted.sort_by(f64::total_cmp);
                for quantile in QUANTILES {
                    let value = find_quantile(&sorted, quantile);
                    print_sample(out, name, &format!("{labels}{separator}quantile=\"{quantile}\""), value);
                }
            }
        }
        print_sample(out, &format!("{name}_sum"), labels, self.sum);
        print_sample(out, &format!("{name}_count"), labels, self.count);
    }
}

fn remove_old_values(recent: &mut VecDeque<(Instant, f64)>) {
    while recent.front().is_some_and(|(recorded, _)| recorded.elapsed() > QUANTILE_WINDOW) {
        recent.pop_front();
    }
}

/// The value at the rank of the quantile, rounded down; 0 without values.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a rank is between 0 and the number of values, at most 4096"
)]
fn find_quantile(sorted: &[f64], quantile: f64) -> f64 {
    let rank = quantile * sorted.len().saturating_sub(1) as f64;
    sorted.get(rank as usize).copied().unwrap_or(0.0)
}

/// Prints the labels of a key in their order, without the braces.
fn print_labels(key: &Key) -> String {
    let labels = key.labels().map(|label| format!("{}=\"{}\"", label.key(), escape(label.value(), &['\\', '"', '\n'])));
    labels.collect::<Vec<_>>().join(",")
}

fn print_sample(out: &mut String, name: &str, labels: &str, value: impl Display) {
    if labels.is_empty() {
        print(out, format_args!("{name} {value}\n"));
    } else {
        print(out, format_args!("{name}{{{labels}}} {value}\n"));
    }
}

fn print(out: &mut String, text: fmt::Arguments<'_>) {
    // A string takes everything.
    let _ = out.write_fmt(text);
}

/// Puts a backslash before these characters; a line break becomes `\n`.
fn escape(text: &str, special: &[char]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars() {
        if special.contains(&sign) {
            escaped.push('\\');
        }
        escaped.push(if sign == '\n' { 'n' } else { sign });
    }
    escaped
}

#[cfg(test)]
mod tests {
    use metrics::{counter, describe_counter, describe_histogram, gauge, histogram, with_local_recorder};

    use super::*;

    #[test]
    fn metrics_are_printed_in_the_text_format() {
        let registry = MetricsRegistry::default();
        with_local_recorder(&registry, || {
            describe_counter!("c_total", "Bytes below C:\\ as\nread");
            describe_counter!("unused_total", "Never counted");
            counter!("c_total", "b" => "say \"hi\"\n\\", "a" => "2").increment(2);
            counter!("c_total", "b" => "0", "a" => "1").absolute(7);
            counter!("c_total", "b" => "0", "a" => "1").increment(1);
            gauge!("g").set(0.25);
            gauge!("g").set(-3.0);
            describe_histogram!(STOP_SECONDS, Unit::Seconds, "Of a stop");
            for seconds in [0.0005, 0.002, 0.3, 30.0] {
                histogram!(STOP_SECONDS).record(seconds);
            }
        });
        let expected = r#"# HELP c_total Bytes below C:\\ as\nread
# TYPE c_total counter
c_total{b="0",a="1"} 8
c_total{b="say \"hi\"\n\\",a="2"} 2

# TYPE g gauge
g -3

# HELP quell_stop_seconds Of a stop
# TYPE quell_stop_seconds histogram
quell_stop_seconds_bucket{le="0.001"} 1
quell_stop_seconds_bucket{le="0.002"} 2
quell_stop_seconds_bucket{le="0.005"} 2
quell_stop_seconds_bucket{le="0.01"} 2
quell_stop_seconds_bucket{le="0.02"} 2
quell_stop_seconds_bucket{le="0.05"} 2
quell_stop_seconds_bucket{le="0.1"} 2
quell_stop_seconds_bucket{le="0.2"} 2
quell_stop_seconds_bucket{le="0.5"} 3
quell_stop_seconds_bucket{le="1"} 3
quell_stop_seconds_bucket{le="2"} 3
quell_stop_seconds_bucket{le="5"} 3
quell_stop_seconds_bucket{le="10"} 3
quell_stop_seconds_bucket{le="+Inf"} 4
quell_stop_seconds_sum 30.3025
quell_stop_seconds_count 4

"#;
        assert_eq!(registry.render(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn quantiles_cover_the_last_minute_and_sums_everything() {
        let registry = MetricsRegistry::default();
        let record = |values: &[f64]| {
            let histogram = with_local_recorder(&registry, || histogram!("sweep_seconds", "kind" => "idle"));
            values.iter().for_each(|value| histogram.record(*value));
        };
        let quantiles = |rows: [f64; 7]| {
            let rows = QUANTILES.iter().zip(rows);
            rows.map(|(quantile, value)| format!("sweep_seconds{{kind=\"idle\",quantile=\"{quantile}\"}} {value}\n"))
                .collect::<String>()
        };
        record(&[8.0]);
        tokio::time::advance(QUANTILE_WINDOW).await;
        record(&[0.25, 2.0, 0.5]);
        let end = "sweep_seconds_sum{kind=\"idle\"} 10.75\nsweep_seconds_count{kind=\"idle\"} 4\n\n";
        let shown = registry.render();
        let expected = quantiles([0.25, 0.5, 2.0, 2.0, 2.0, 2.0, 8.0]);
        assert_eq!(shown, format!("# TYPE sweep_seconds summary\n{expected}{end}"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(registry.render().contains(&quantiles([0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 2.0])));
        tokio::time::advance(QUANTILE_WINDOW).await;
        let shown = registry.render();
        assert!(shown.contains(&quantiles([0.0; 7])) && shown.ends_with(end), "{shown}");
    }
}
