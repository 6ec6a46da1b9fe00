//! Every judgment so far, in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::mutants::list::Mutant;

/// The end of a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// A test failed, or the test program died.
    Caught,
    /// The tests did not end in time, so somebody would have looked.
    TimedOut,
    /// All tests passed.
    Survived,
    /// It does not compile.
    Unviable,
}

/// A verdict and how it came about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Judgment {
    pub(crate) verdict: Verdict,
    /// The test that noticed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) by: String,
    pub(crate) seconds: f64,
}

impl Judgment {
    /// For people who watch.
    pub(crate) fn line(&self, mutant: &Mutant) -> String {
        let word = match self.verdict {
            Verdict::Caught => "caught",
            Verdict::TimedOut => "timed out",
            Verdict::Survived => "SURVIVED",
            Verdict::Unviable => "unviable",
        };
        let by = match self.by.as_str() {
            "" => String::new(),
            by => format!(" (by {by})"),
        };
        format!(
            "{word:<9} {:>6.1} s  {}:{}: {}{by}",
            self.seconds, mutant.file, mutant.line, mutant.what
        )
    }
}

/// Judgments by the key of their mutant.
#[derive(Debug)]
pub(crate) struct Results {
    file: PathBuf,
    judgments: BTreeMap<String, Judgment>,
}

impl Results {
    /// Those in `file`, or none.
    pub(crate) fn load(file: PathBuf) -> Result<Self> {
        let judgments = if file.is_file() {
            let text = fs::read_to_string(&file).context("could not read the results so far")?;
            serde_json::from_str(&text)
                .with_context(|| format!("`{}` is not what was written", file.display()))?
        } else {
            BTreeMap::new()
        };
        Ok(Self { file, judgments })
    }

    pub(crate) fn verdict(&self, key: &str) -> Option<Verdict> {
        self.judgments.get(key).map(|judgment| judgment.verdict)
    }

    pub(crate) fn survivors(&self) -> BTreeSet<String> {
        self.judgments
            .iter()
            .filter(|(_, judgment)| judgment.verdict == Verdict::Survived)
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// The judged ones among `mutants`, whichever sample they came from.
    pub(crate) fn of<'a>(&self, mutants: &'a [Mutant]) -> Vec<(&'a Mutant, Verdict)> {
        mutants
            .iter()
            .filter_map(|mutant| Some((mutant, self.verdict(&mutant.key)?)))
            .collect()
    }

    /// Adds one and writes the file, which is whole at every moment.
    pub(crate) fn add(&mut self, mutant: &Mutant, judgment: Judgment) -> Result<()> {
        self.judgments.insert(mutant.key.clone(), judgment);
        let text = serde_json::to_string_pretty(&self.judgments)?;
        let fresh = self.file.with_extension("new");
        fs::write(&fresh, text).context("could not write the results")?;
        fs::rename(&fresh, &self.file).context("could not put the results in place")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_again() {
        let file = std::env::temp_dir().join(format!("xtask-results-{}", std::process::id()));
        let mutants = [Mutant::of("a.rs", "one"), Mutant::of("a.rs", "two")];
        let mut results = Results::load(file.clone()).unwrap();
        let judgment = Judgment {
            verdict: Verdict::Survived,
            by: String::new(),
            seconds: 1.5,
        };
        results.add(&mutants[1], judgment).unwrap();
        let found = Results::load(file.clone()).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(found.of(&mutants), [(&mutants[1], Verdict::Survived)]);
        assert_eq!(found.survivors(), BTreeSet::from(["a.rs: two".to_owned()]));
    }
}
