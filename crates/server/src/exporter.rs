//! The recorded metrics, in the text format of Prometheus.

use ::metrics::Recorder;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// The upper bounds of the buckets of durations, in seconds.
const SECONDS: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// The same bounds for the metrics whose names promise milliseconds.
const MILLISECONDS: [f64; 15] = [
    1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0,
    30_000.0, 60_000.0,
];

/// The upper bounds of the buckets of small numbers: attempts, retries, batch sizes.
const COUNTS: [f64; 10] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0];

/// Ends of the names of durations in seconds. A histogram that fits no rule here is shown as a
/// summary, because no buckets are right for a number nobody knows.
const SECONDS_SUFFIXES: [&str; 3] = ["seconds", "duration", "latency"];
const MILLISECONDS_SUFFIXES: [&str; 1] = ["_ms"];
const COUNTS_SUFFIXES: [&str; 3] = ["attempts", "retry_count", "eventbus_batch_size"];

/// A handle on what was recorded. Cloning shares it.
///
/// The process installs one recorder, early, in its `main`:
///
/// ```no_run
/// let exporter = tidegate_server::Exporter::install()?;
/// # Ok::<(), tidegate_server::InstallError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Exporter {
    handle: PrometheusHandle,
}

/// The recorder could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The process has a recorder already, from an earlier call or from the application.
    #[error("a recorder of metrics is installed already")]
    Installed,
}

impl Exporter {
    /// Installs the recorder of this process and returns the handle on it. Spawns nothing: a
    /// server that was given the handle does the upkeep while it runs.
    ///
    /// # Errors
    /// When a recorder is installed already, so on any second call.
    pub fn install() -> Result<Self, InstallError> {
        let (recorder, exporter) = Self::with_recorder();
        ::metrics::set_global_recorder(recorder).map_err(|_| InstallError::Installed)?;
        Ok(exporter)
    }

    /// A recorder that is not installed, with the handle on it; for applications that fan out to
    /// several recorders, and for tests.
    #[must_use]
    pub fn with_recorder() -> (impl Recorder + Send + Sync + 'static, Self) {
        let recorder = builder().build_recorder();
        let handle = recorder.handle();
        (recorder, Self { handle })
    }

    /// The text that Prometheus reads, families in the order of their names.
    #[must_use]
    pub fn render(&self) -> String {
        let text = self.handle.render();
        let mut families: Vec<&str> = text
            .split("\n\n")
            .map(str::trim)
            .filter(|family| !family.is_empty())
            .collect();
        families.sort_by_key(|family| family_name(family));
        families
            .iter()
            .map(|family| format!("{family}\n\n"))
            .collect()
    }

    /// Folds what histograms collected into their buckets. Without this, or somebody who reads
    /// the metrics, they would grow for as long as the process runs.
    pub(crate) fn keep_up(&self) {
        self.handle.run_upkeep();
    }
}

/// The name in the first comment line of a family: `# HELP name …` or `# TYPE name …`.
fn family_name(family: &str) -> &str {
    family.split_whitespace().nth(2).unwrap_or(family)
}

fn builder() -> PrometheusBuilder {
    let rules = SECONDS_SUFFIXES
        .iter()
        .map(|suffix| (suffix, &SECONDS[..]))
        .chain(
            MILLISECONDS_SUFFIXES
                .iter()
                .map(|suffix| (suffix, &MILLISECONDS[..])),
        )
        .chain(COUNTS_SUFFIXES.iter().map(|suffix| (suffix, &COUNTS[..])));
    rules.fold(PrometheusBuilder::new(), |builder, (suffix, buckets)| {
        builder
            .set_buckets_for_metric(Matcher::Suffix((*suffix).to_owned()), buckets)
            .expect("the lists of buckets are not empty")
    })
}

#[cfg(test)]
mod tests {
    use ::metrics::with_local_recorder;

    use super::*;

    #[test]
    fn durations_have_buckets_and_unknown_numbers_are_summaries() {
        let (recorder, exporter) = Exporter::with_recorder();
        with_local_recorder(&recorder, || {
            ::metrics::histogram!("eventbus.processing.duration").record(0.002);
            ::metrics::histogram!("stage.checkpoint.duration_ms").record(20.0);
            ::metrics::histogram!("eventbus.batch.size").record(3.0);
            ::metrics::histogram!("outbox_batch_size").record(3.0);
        });
        let text = exporter.render();
        let types: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("# TYPE"))
            .collect();
        insta::assert_snapshot!(types.join("\n"), @"
        # TYPE eventbus_batch_size histogram
        # TYPE eventbus_processing_duration histogram
        # TYPE outbox_batch_size summary
        # TYPE stage_checkpoint_duration_ms histogram
        ");
        assert!(
            text.contains("eventbus_processing_duration_bucket{le=\"0.001\"} 0"),
            "{text}"
        );
        assert!(
            text.contains("eventbus_processing_duration_bucket{le=\"60\"} 1"),
            "{text}"
        );
        assert!(
            text.contains("stage_checkpoint_duration_ms_bucket{le=\"25\"} 1"),
            "{text}"
        );
    }
}
