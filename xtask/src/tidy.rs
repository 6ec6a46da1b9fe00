//! `cargo xtask tidy`: rules about the checkout that no compiler knows.
//!
//! Each rule is a pure function from the files (or from cargo's view of the packages) to findings. So
//! each is tested with a few lines that break it. All findings are shown at once.

mod changelog;
mod copies;
mod error_pages;
mod layers;
mod links;
mod names;
mod paths;
mod product;
mod promises;
mod rust;
mod sentences;
mod tree;
mod type_names;

use std::fmt;

use anyhow::Result;

use crate::tidy::tree::Tree;
use crate::workspace::Workspace;

/// Something that is not as agreed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Finding {
    fn new(file: &str, line: usize, text: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line,
            text: text.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.text)
    }
}

/// Everything the rules have to say.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
    /// Worth a look, but no reason to refuse.
    pub(crate) notes: Vec<Finding>,
    /// Lines of code of the product.
    pub(crate) product_lines: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        Ok(())
    }
}

/// `cargo xtask tidy`.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let report = check(workspace)?;
    print!("{report}");
    println!("{} lines of product code", report.product_lines);
    match report.findings.len() {
        0 => println!("tidy"),
        1 => println!("1 finding"),
        count => println!("{count} findings"),
    }
    Ok(report.findings.is_empty())
}

/// Applies every rule to the checkout.
pub(crate) fn check(workspace: &Workspace) -> Result<Report> {
    let tree = Tree::read(workspace.root())?;
    let members = layers::Members::read(workspace)?;
    let mut report = Report::default();
    report.findings.extend(members.check(&tree));
    for rule in [
        links::check,
        promises::check,
        error_pages::check,
        names::check,
        paths::check,
        changelog::check,
        sentences::check,
    ] {
        report.findings.extend(rule(&tree));
    }
    let sources = product::sources(&tree);
    report.product_lines = product::count(&sources);
    report.findings.extend(copies::check(&sources));
    report.findings.extend(type_names::check(&sources));
    report.findings.sort();
    report.notes.extend(names::long_files(&tree));
    Ok(report)
}
