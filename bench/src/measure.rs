//! One measurement, and how it is printed.

use std::time::{Duration, Instant};

use serde_json::json;

/// Ours and a reference, measured in the same run.
pub(crate) struct Measurement<'a> {
    pub(crate) bench: &'a str,
    pub(crate) ours: f64,
    pub(crate) reference: f64,
    pub(crate) reference_is: &'static str,
    pub(crate) unit: &'static str,
}

impl Measurement<'_> {
    /// Prints it as one line of JSON.
    pub(crate) fn print(&self) {
        let line = json!({
            "bench": self.bench,
            "ours": rounded(self.ours),
            "reference": rounded(self.reference),
            "reference_is": self.reference_is,
            "unit": self.unit,
            "ratio": rounded(self.ours / self.reference),
            "cpu_s": rounded(cpu_time().as_secs_f64()),
            "rss_mb": rounded(resident_mib()),
        });
        println!("{line}");
    }
}

/// Nanoseconds per call: the median of several rounds, each long enough for the clock.
pub(crate) fn nanos_per_call(mut call: impl FnMut()) -> f64 {
    const ROUNDS: usize = 15;
    const CALLS: u32 = 200_000;
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// The value below which this share of the samples lies. Sorts them.
pub(crate) fn percentile(samples: &mut [u32], share: f64) -> f64 {
    samples.sort_unstable();
    let last = samples.len().saturating_sub(1);
    let index = (last as f64 * share) as usize;
    f64::from(samples.get(index).copied().unwrap_or(0))
}

/// The one in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

pub(crate) fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Processor time of this process so far; zero where the system does not tell.
pub(crate) fn cpu_time() -> Duration {
    cpu_time_of("self")
}

/// The same of a process by its id.
pub(crate) fn cpu_time_of(process: &str) -> Duration {
    /// Clock ticks per second in `/proc`, fixed on Linux.
    const TICKS: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The command in parentheses may hold spaces; the fields after it do not.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |index: usize| {
        fields
            .get(index)
            .and_then(|f| f.parse::<u64>().ok())
            .unwrap_or(0)
    };
    Duration::from_millis((ticks(11) + ticks(12)) * 1_000 / TICKS)
}

/// Resident memory in MiB; zero where the system does not tell.
fn resident_mib() -> f64 {
    resident_mib_of("self")
}

/// The same of a process by its id.
pub(crate) fn resident_mib_of(process: &str) -> f64 {
    memory_mib(process, "VmRSS:")
}

/// Counts the most resident memory from here on, where the system can; otherwise it is that of the whole run.
pub(crate) fn begin_peak() {
    std::fs::write("/proc/self/clear_refs", "5").ok();
}

/// The most resident memory that this process ever had, or since [`begin_peak`], in MiB.
pub(crate) fn peak_resident_mib() -> f64 {
    memory_mib("self", "VmHWM:")
}

fn memory_mib(process: &str, name: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    let kib: f64 = line
        .and_then(|line| line.split_whitespace().nth(1))
        .and_then(|number| number.parse().ok())
        .unwrap_or(0.0);
    kib / 1_024.0
}
