//! The lines that are printed.

use serde_json::json;

use super::program::Why;
use crate::measure::rounded;

/// Ours and a reference, with what ours cost.
pub(super) struct Line<'a> {
    pub(super) bench: &'a str,
    pub(super) ours: f64,
    pub(super) reference: f64,
    pub(super) reference_is: &'a str,
    pub(super) unit: &'a str,
    pub(super) cost: Cost,
}

/// Processor time and memory of our side, the server's processor time included.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    pub(super) cpu_s: f64,
    pub(super) rss_mb: f64,
}

impl Line<'_> {
    pub(super) fn print(&self) {
        let line = json!({
            "bench": self.bench,
            "ours": rounded(self.ours),
            "reference": rounded(self.reference),
            "reference_is": self.reference_is,
            "unit": self.unit,
            "ratio": rounded(self.ours / self.reference),
            "cpu_s": rounded(self.cost.cpu_s),
            "rss_mb": rounded(self.cost.rss_mb),
        });
        println!("{line}");
    }
}

/// Says what could not be measured, and why.
pub(super) fn skipped(bench: &str, why: &Why) {
    println!("{}", json!({"bench": bench, "skipped": why}));
}
