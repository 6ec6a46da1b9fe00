//! The results, for people and for the page about reliability.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::mutants::list::Mutant;
use crate::mutants::results::Verdict;

/// The page that holds the figures of the last whole run.
pub(crate) const PAGE: &str = "docs/reliability.md";
const BEGIN: &str = "<!-- cargo xtask mutants writes from here -->\n";
const END: &str = "<!-- to here -->\n";

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    caught: usize,
    survived: usize,
}

impl Count {
    fn viable(self) -> usize {
        self.caught + self.survived
    }

    fn add(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Caught | Verdict::TimedOut => self.caught += 1,
            Verdict::Survived => self.survived += 1,
            Verdict::Unviable => {}
        }
    }

    fn row(self, name: &str) -> String {
        format!(
            "| {name} | {} | {} | {} |\n",
            self.viable(),
            self.caught,
            self.survived
        )
    }
}

/// Whether at least `percent` of the viable ones were noticed.
pub(crate) fn is_enough(judged: &[(&Mutant, Verdict)], percent: usize) -> bool {
    let all = total(judged);
    all.caught * 100 >= percent * all.viable()
}

fn total(judged: &[(&Mutant, Verdict)]) -> Count {
    let mut all = Count::default();
    for (_, verdict) in judged {
        all.add(*verdict);
    }
    all
}

/// The sum, a table by file, and the survivors.
pub(crate) fn markdown(judged: &[(&Mutant, Verdict)], seed: u64) -> String {
    let all = total(judged);
    let count = |wanted| judged.iter().filter(|(_, found)| *found == wanted).count();
    let mut text = format!(
        "Seed {seed}: {} viable mutants, {} caught ({} of them by the time limit), {} survived; {} did not compile.\n\n",
        all.viable(),
        all.caught,
        count(Verdict::TimedOut),
        all.survived,
        count(Verdict::Unviable)
    );
    text.push_str("| file | viable | caught | survived |\n|---|---|---|---|\n");
    let mut files: BTreeMap<&str, Count> = BTreeMap::new();
    for (mutant, verdict) in judged {
        files.entry(&mutant.file).or_default().add(*verdict);
    }
    for (file, count) in files {
        text.push_str(&count.row(&format!("`{file}`")));
    }
    text.push_str(&all.row("all"));
    let survivors = judged
        .iter()
        .filter(|(_, verdict)| *verdict == Verdict::Survived);
    for (at, (mutant, _)) in survivors.enumerate() {
        if at == 0 {
            text.push_str("\nSurvivors:\n\n");
        }
        let Mutant {
            file, line, what, ..
        } = mutant;
        // Writing to a string does not fail.
        let _written = writeln!(text, "- `{file}:{line}`: `{what}`");
    }
    text
}

/// Puts the figures between their marks on the page.
pub(crate) fn write(page: &Path, figures: &str) -> Result<()> {
    let name = page.display();
    let text = fs::read_to_string(page).with_context(|| format!("could not read `{name}`"))?;
    let text =
        replaced(&text, figures).with_context(|| format!("`{name}` has no place for figures"))?;
    fs::write(page, text).with_context(|| format!("could not write `{name}`"))
}

fn replaced(page: &str, figures: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{figures}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_add_up_by_file() {
        let (a, b) = (Mutant::of("a.rs", "one"), Mutant::of("b.rs", "two"));
        let judged = [
            (&a, Verdict::Caught),
            (&a, Verdict::TimedOut),
            (&a, Verdict::Unviable),
            (&b, Verdict::Survived),
        ];
        let text = markdown(&judged, 7);
        for line in [
            "Seed 7: 3 viable mutants, 2 caught (1 of them by the time limit), 1 survived; 1 did not compile.",
            "| `a.rs` | 2 | 2 | 0 |",
            "| `b.rs` | 1 | 0 | 1 |",
            "| all | 3 | 2 | 1 |",
            "- `b.rs:1`: `two`",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(is_enough(&judged, 66) && !is_enough(&judged, 67));
    }

    #[test]
    fn the_figures_replace_the_ones_before() {
        let page = format!("before\n{BEGIN}old\n{END}after\n");
        assert_eq!(
            replaced(&page, "new\n").unwrap(),
            format!("before\n{BEGIN}\nnew\n\n{END}after\n")
        );
        assert_eq!(replaced("nothing", "new"), None);
    }
}
