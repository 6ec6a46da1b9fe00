//! The lines that are printed.

use serde_json::json;

use crate::measure::rounded;
use crate::program::Why;

/// Ours and a reference, with what ours cost.
pub(crate) struct Line<'a> {
    pub(crate) bench: &'a str,
    pub(crate) ours: f64,
    pub(crate) reference: f64,
    pub(crate) reference_is: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) cost: Cost,
}

/// Processor time and memory of our side, the server's processor time included.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) cpu_s: f64,
    pub(crate) rss_mb: f64,
}

impl Line<'_> {
    pub(crate) fn print(&self) {
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
pub(crate) fn skipped(bench: &str, why: &Why) {
    println!("{}", json!({"bench": bench, "skipped": why}));
}
