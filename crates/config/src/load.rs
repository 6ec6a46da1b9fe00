//! From texts and an environment to a checked configuration.

use std::collections::{BTreeMap, BTreeSet};

use crate::coherence;
use crate::config::Config;
use crate::defaults;
use crate::findings::Findings;
use crate::imports::{Expanded, Files, NoFiles};
use crate::keys::{Part, ROOT};
use crate::overrides::{self, Override};
use crate::path::KeyPath;
use crate::problem::{Problem, Problems};
use crate::read::ConfigReader;
use crate::tree;
use crate::value::{Branch, ValueLocation};

/// A text with a name for messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigSource {
    /// Its name in messages, usually the path of the file.
    pub name: String,
    /// The YAML text.
    pub text: String,
}

/// Everything a configuration is made of. Later things stand over earlier ones: the sources in
/// their order, then the environment, then the arguments.
///
/// ```
/// use tidegate_config::{Inputs, load};
/// let mut inputs = Inputs::of_text("tidegate.yaml", "store: {max-connections: 5}\n");
/// inputs.environment.insert("STORE_MAX_CONNECTIONS".into(), "6".into());
/// assert_eq!(load(&inputs).config.integer("store.max-connections"), Some(6));
/// inputs.arguments.push(("store.max-connections".into(), "7".into()));
/// assert_eq!(load(&inputs).config.integer("store.max-connections"), Some(7));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// The files.
    pub sources: Vec<ConfigSource>,
    /// The environment: for `${…}` in values, and for overrides.
    pub environment: BTreeMap<String, String>,
    /// Overrides by path, as pairs of path and value.
    pub arguments: Vec<(String, String)>,
    /// The parts this program has. A section of any other part is a warning.
    pub built: Vec<Part>,
}

impl Inputs {
    /// One text, an empty environment, and every part built.
    #[must_use]
    pub fn of_text(name: &str, text: &str) -> Self {
        Self {
            sources: vec![ConfigSource {
                name: name.to_owned(),
                text: text.to_owned(),
            }],
            built: Part::ALL.to_vec(),
            ..Self::default()
        }
    }
}

/// A configuration and everything that is wrong with it.
///
/// ```
/// use tidegate_config::{Inputs, Part, load};
/// let mut inputs = Inputs::of_text("tidegate.yaml", "queue: {batch-size: 10}\n");
/// inputs.built = vec![Part::Log];
/// let mut loaded = load(&inputs);
/// assert!(loaded.problems.is_empty());
/// assert_eq!(loaded.warnings.len(), 1);
/// loaded.require_built(&[Part::Log]);
/// assert!(loaded.checked().is_err());
/// ```
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The values that hold; where something is wrong, its default.
    pub config: Config,
    /// Mistakes that must be put right.
    pub problems: Problems,
    /// Things that somebody should look at.
    pub warnings: Problems,
    /// Where each part is given, ready to be a problem or a warning.
    given: Vec<(Part, Problem)>,
}

impl Loaded {
    /// The configuration with its warnings, or the problems.
    ///
    /// # Errors
    ///
    /// All problems, if there are any.
    pub fn checked(self) -> Result<(Config, Problems), Problems> {
        if self.problems.is_empty() {
            Ok((self.config, self.warnings))
        } else {
            Err(self.problems)
        }
    }

    /// Makes a problem of every section whose part is not in `built`, for a program that is going to run
    /// what the file says. Calling it again with the same parts changes nothing.
    pub fn require_built(&mut self, built: &[Part]) {
        for (part, finding) in std::mem::take(&mut self.given) {
            if built.contains(&part) {
                self.given.push((part, finding));
            } else {
                self.warnings.retain(|warning| *warning != finding);
                self.problems.add(finding);
            }
        }
    }
}

/// Loads a configuration. Never fails: everything wrong is in what it returns.
///
/// ```
/// use std::time::Duration;
/// use tidegate_config::{Inputs, load};
/// let loaded = load(&Inputs::of_text("tidegate.yaml", "shutdown-timeout: 1m\n"));
/// assert!(loaded.problems.is_empty());
/// assert_eq!(loaded.config.duration("shutdown-timeout"), Some(Duration::from_secs(60)));
/// ```
#[must_use]
pub fn load(inputs: &Inputs) -> Loaded {
    load_with(inputs, &mut NoFiles)
}

/// Loads a configuration with the files it imports.
///
/// ```
/// use tidegate_config::{Files, Inputs, load_with};
/// struct Two;
/// impl Files for Two {
///     fn find(&mut self, _importer: &str, pattern: &str) -> Result<Vec<String>, String> {
///         Ok(vec![pattern.to_owned()])
///     }
///     fn read(&mut self, _name: &str) -> Result<String, String> {
///         Ok("shutdown-timeout: 5s\nstore: {max-connections: 5}\n".to_owned())
///     }
/// }
/// let text = "imports: [base.yaml]\nshutdown-timeout: 1s\n";
/// let loaded = load_with(&Inputs::of_text("tidegate.yaml", text), &mut Two);
/// // The importing file stands over what it imports.
/// assert_eq!(loaded.config.origin("shutdown-timeout").unwrap().to_string(), "tidegate.yaml:2:19");
/// assert_eq!(loaded.config.integer("store.max-connections"), Some(5));
/// ```
#[must_use]
pub fn load_with(inputs: &Inputs, files: &mut dyn Files) -> Loaded {
    let expanded = Expanded::of(&inputs.sources, &inputs.environment, files);
    let mut findings = Findings::new(&expanded.sources);
    let mut root = Branch::new();
    expanded.report(&mut findings);
    read_sources(inputs, &expanded.sources, &mut findings, &mut root);
    read_overrides(inputs, &mut findings, &mut root);
    let given = given_parts(&root, &findings);
    for (part, finding) in &given {
        if !inputs.built.contains(part) {
            findings.warning(finding.clone());
        }
    }
    defaults::fill(&mut root, &mut findings);
    coherence::check(&root, &mut findings);
    defaults::repair(&mut root);
    let (problems, warnings) = findings.close();
    let names = expanded.sources.iter();
    let files = names.map(|source| source.name.clone()).collect();
    Loaded {
        config: Config::new(root, files),
        problems,
        warnings,
        given,
    }
}

fn read_sources(
    inputs: &Inputs,
    sources: &[ConfigSource],
    findings: &mut Findings<'_>,
    root: &mut Branch,
) {
    for (n, source) in sources.iter().enumerate() {
        match tree::parse(&source.text, n) {
            Ok(None) => {}
            Ok(Some(node)) => {
                let mut reader = ConfigReader {
                    environment: &inputs.environment,
                    findings,
                    outside: None,
                };
                reader.hide_passwords(&node);
                reader.section(ROOT, &node, &KeyPath::default(), root);
            }
            Err(refusal) => {
                findings.opaque(n);
                let spot = ValueLocation::File(refusal.span);
                let problem = findings.at(&spot, &KeyPath::default(), refusal.message);
                findings.problem(problem.hint(refusal.hint.map(str::to_owned)));
            }
        }
    }
}

fn read_overrides(inputs: &Inputs, findings: &mut Findings<'_>, root: &mut Branch) {
    for (name, value) in &inputs.environment {
        let found = overrides::variable(name, value, root);
        let spot = ValueLocation::Environment(name.clone());
        read_override(found, spot, findings, root);
    }
    for (path, value) in &inputs.arguments {
        let found = overrides::argument(path, value, root);
        let spot = ValueLocation::Argument(path.clone());
        read_override(found, spot, findings, root);
    }
}

fn read_override(
    found: Override,
    spot: ValueLocation,
    findings: &mut Findings<'_>,
    root: &mut Branch,
) {
    match found {
        Override::Foreign => {}
        Override::Wrong(message) => {
            let problem = findings.at(&spot, &KeyPath::default(), message);
            let about = Part::ALL.into_iter().filter(|part| spot.names(part.name()));
            findings.problem(problem.parts(about));
        }
        Override::Tree(node) => {
            let mut reader = ConfigReader {
                // Nothing is interpolated in an override, so it needs no environment.
                environment: &BTreeMap::new(),
                findings,
                outside: Some(spot),
            };
            reader.section(ROOT, &node, &KeyPath::default(), root);
        }
    }
}

/// The parts whose sections somebody gave.
fn given_parts(root: &Branch, findings: &Findings<'_>) -> Vec<(Part, Problem)> {
    let mut seen = BTreeSet::new();
    let mut given = Vec::new();
    for key in ROOT {
        let (Some(part), Some(entry)) = (Part::of_section(key.name), root.get(key.name)) else {
            continue;
        };
        if seen.insert(part) {
            let spot = entry.key_spot();
            // Right where it belongs: the library reads it, and no program of ours runs it.
            let message = if part == Part::Eventlog {
                "is valid; applications that link the event client use it, but `tidegate run` \
                 does not"
                    .to_owned()
            } else {
                let name = part.name();
                format!("is valid, but this build does not include {name}")
            };
            let finding = findings.at(&spot, &KeyPath::default().name(key.name), message);
            given.push((part, finding));
        }
    }
    given
}
