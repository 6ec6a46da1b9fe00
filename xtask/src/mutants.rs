//! `cargo xtask mutants`: whether the tests notice a mistake where a mistake loses or doubles an event.
//!
//! cargo-mutants says which small mistakes there are. A sample of them is put into a copy of the
//! checkout, one at a time, and the package's own tests must fail. We judge them here and not by
//! cargo-mutants itself, because that is faster. A test program is stopped at its first failure, and
//! slower programs are built only for mutants that the unit tests let pass. Every judgment is kept, so
//! a run can end after any mutant and the next one goes on behind it.

mod copy;
mod judge;
mod list;
mod report;
mod results;
mod run;
mod sample;
mod scope;

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::arguments::MutantsOptions;
use crate::mutants::judge::{Judge, Place};
use crate::mutants::list::Mutant;
use crate::mutants::results::{Results, Verdict};
use crate::mutants::scope::{SCOPES, Scope};
use crate::workspace::Workspace;

/// Of a hundred mistakes so many must be noticed.
const PERCENT_CAUGHT: usize = 90;

/// Judges what is left of the sample, for as long as `options` allow, and says whether all is well.
pub(crate) fn run(workspace: &Workspace, options: &MutantsOptions) -> Result<bool> {
    let scopes = select(&options.only)?;
    let home = workspace.root().join("target/mutants");
    fs::create_dir_all(&home).with_context(|| format!("could not create `{}`", home.display()))?;
    let tool = list::tool(workspace)?;
    let place = Place::new(workspace, &home);
    copy::refresh(workspace.root(), &place.tree)?;
    let mut mutants = Vec::new();
    for (number, scope) in SCOPES.iter().enumerate() {
        mutants.extend(list::list(&tool, &place.tree, number, scope)?);
    }
    let mut results = Results::load(home.join("results.json"))?;
    println!(
        "{} mutants in {} files; a sample of {} by seed {}",
        mutants.len(),
        sample::files(&mutants).len(),
        options.sample,
        options.seed
    );

    let left = judge_sample(&place, &scopes, &mutants, &mut results, options)?;

    let known = results.of(&mutants);
    let text = report::markdown(&known, options.seed);
    print!("{text}");
    if left > 0 {
        println!("{left} mutants are still to be judged: call this once more");
        return Ok(true);
    }
    if options.only.is_empty() {
        report::write(&workspace.root().join(report::PAGE), &text)?;
    }
    Ok(report::is_enough(&known, PERCENT_CAUGHT))
}

/// Returns how many mutants are left when the time is up.
fn judge_sample(
    place: &Place,
    scopes: &[(usize, &'static Scope)],
    mutants: &[Mutant],
    results: &mut Results,
    options: &MutantsOptions,
) -> Result<usize> {
    let end = Instant::now() + Duration::from_secs(options.minutes * 60);
    let mut again: BTreeSet<String> = if options.again {
        results.survivors()
    } else {
        BTreeSet::new()
    };
    let mut left = 0;
    for (number, scope) in scopes {
        let mut judge = None;
        loop {
            // One that does not compile says nothing about the tests, so another takes its place.
            let sample = sample::draw(mutants, options.sample, options.seed, |mutant| {
                results.verdict(&mutant.key) == Some(Verdict::Unviable)
            });
            let mut waiting = sample.into_iter().filter(|mutant| {
                mutant.scope == *number
                    && (again.contains(&mutant.key) || results.verdict(&mutant.key).is_none())
            });
            let Some(mutant) = waiting.next() else {
                break;
            };
            if Instant::now() >= end {
                left += 1 + waiting.count();
                break;
            }
            let judge = match &mut judge {
                Some(judge) => judge,
                none => none.insert(Judge::begin(place, scope)?),
            };
            let judgment = judge.judge(mutant)?;
            println!("{}", judgment.line(mutant));
            again.remove(&mutant.key);
            results.add(mutant, judgment)?;
        }
    }
    Ok(left)
}

fn select(only: &[String]) -> Result<Vec<(usize, &'static Scope)>> {
    for name in only {
        if !SCOPES.iter().any(|scope| scope.package == name) {
            let mut known: Vec<&str> = SCOPES.iter().map(|scope| scope.package).collect();
            known.dedup();
            bail!(
                "no file of `{name}` is mutated; there are {}",
                known.join(", ")
            );
        }
    }
    let wanted = |scope: &Scope| only.is_empty() || only.iter().any(|name| name == scope.package);
    let scopes = SCOPES.iter().enumerate();
    Ok(scopes.filter(|(_, scope)| wanted(scope)).collect())
}
