//! Files that a file imports.
//!
//! An imported file stands under the file that imports it: the importing file wins, and of two
//! imports the later one. A file that several others import is read once, in its first place.
//!
//! The loader reads no file itself; its caller hands it a [`Files`].

use std::collections::BTreeMap;

use crate::findings::Findings;
use crate::interpolate::interpolate;
use crate::keys::{IMPORTS, ROOT, find};
use crate::load::ConfigSource;
use crate::path::KeyPath;
use crate::problem::TextSpan;
use crate::secret::shown_text;
use crate::tree::{self, Body, YamlNode};
use crate::value::ValueLocation;

/// How many files may import one another in a row.
pub const MAX_IMPORT_DEPTH: usize = 8;
/// How many files one configuration may be made of.
pub const MAX_FILES: usize = 64;

/// The way to the files that a configuration imports.
pub trait Files {
    /// The names of the files that `pattern` stands for, as it is written in the file `importer`.
    /// A file always has the same name, or a cycle is seen only at [`MAX_IMPORT_DEPTH`].
    ///
    /// # Errors
    /// Why the pattern cannot be followed, to be read after the pattern. A pattern that matches
    /// nothing is an empty list.
    fn find(&mut self, importer: &str, pattern: &str) -> Result<Vec<String>, String>;

    /// The text of a file that [`Files::find`] named.
    ///
    /// # Errors
    /// Why it cannot be read, to be read after its name.
    fn read(&mut self, name: &str) -> Result<String, String>;
}

/// For callers with texts and no files.
pub(crate) struct NoFiles;

impl Files for NoFiles {
    fn find(&mut self, _: &str, _: &str) -> Result<Vec<String>, String> {
        Err("is a file, and only texts are read here".to_owned())
    }

    fn read(&mut self, _: &str) -> Result<String, String> {
        Err("is a file, and only texts are read here".to_owned())
    }
}

/// All texts of a configuration in the order in which later ones stand over earlier ones.
pub(crate) struct Expanded {
    pub(crate) sources: Vec<ConfigSource>,
    remarks: Vec<Remark>,
}

/// A remark about an import.
struct Remark {
    /// The file it stands in, by [`Walk::numbers`].
    file: usize,
    /// Where in the file; the number of the source is not known yet.
    span: TextSpan,
    path: KeyPath,
    message: String,
    is_problem: bool,
}

impl Expanded {
    /// The sources with everything they import.
    pub(crate) fn of(
        sources: &[ConfigSource],
        environment: &BTreeMap<String, String>,
        files: &mut dyn Files,
    ) -> Self {
        let mut walk = Walk {
            environment,
            files,
            open: Vec::new(),
            done: Vec::new(),
            remarks: Vec::new(),
            next: 0,
        };
        for source in sources {
            walk.file(source.clone());
        }
        let mut remarks = walk.remarks;
        for remark in &mut remarks {
            let place = walk
                .done
                .iter()
                .position(|(number, _)| *number == remark.file);
            remark.span.source = place.unwrap_or_default();
        }
        let sources = walk.done.into_iter().map(|(_, source)| source).collect();
        Self { sources, remarks }
    }

    /// Adds what was found on the way.
    pub(crate) fn report(&self, findings: &mut Findings<'_>) {
        for remark in &self.remarks {
            let spot = ValueLocation::File(remark.span);
            let finding = findings.at(&spot, &remark.path, remark.message.as_str());
            if remark.is_problem {
                findings.problem(finding);
            } else {
                findings.warning(finding);
            }
        }
    }
}

/// A pattern in its place.
struct Import {
    pattern: String,
    span: TextSpan,
    path: KeyPath,
}

struct Walk<'a> {
    environment: &'a BTreeMap<String, String>,
    files: &'a mut dyn Files,
    /// The files we are within, from the outermost on, with their numbers.
    open: Vec<(usize, String)>,
    done: Vec<(usize, ConfigSource)>,
    remarks: Vec<Remark>,
    next: usize,
}

impl Walk<'_> {
    fn file(&mut self, source: ConfigSource) {
        let number = self.next;
        self.next += 1;
        self.open.push((number, source.name.clone()));
        for import in imports(&source.text, self.environment) {
            self.import(&source.name, &import);
        }
        self.open.pop();
        self.done.push((number, source));
    }

    fn import(&mut self, importer: &str, import: &Import) {
        let found = match self.files.find(importer, &import.pattern) {
            Ok(found) => found,
            Err(why) => {
                return self.problem(import, format!("`{}` {why}", shown_text(&import.pattern)));
            }
        };
        if found.is_empty() {
            let message = format!("`{}` matches no file", shown_text(&import.pattern));
            self.remark(import, message, false);
        }
        for name in found {
            if self.open.iter().any(|(_, open)| *open == name) {
                self.problem(import, format!("leads back to `{name}`"));
            } else if self.done.iter().any(|(_, source)| source.name == name) {
                // It stands under both already.
            } else if self.open.len() > MAX_IMPORT_DEPTH {
                let message = format!("imports more than {MAX_IMPORT_DEPTH} files in a row");
                self.problem(import, message);
            } else if self.open.len() + self.done.len() >= MAX_FILES {
                let message = format!("brings in more than {MAX_FILES} files");
                return self.problem(import, message);
            } else {
                match self.files.read(&name) {
                    Ok(text) => self.file(ConfigSource { name, text }),
                    Err(why) => self.problem(import, format!("`{name}` {why}")),
                }
            }
        }
    }

    fn problem(&mut self, import: &Import, message: String) {
        self.remark(import, message, true);
    }

    fn remark(&mut self, import: &Import, message: String, is_problem: bool) {
        let file = self.open.last().map_or(0, |(number, _)| *number);
        self.remarks.push(Remark {
            file,
            span: import.span,
            path: import.path.clone(),
            message,
            is_problem,
        });
    }
}

/// The patterns of a text. One that cannot be read is left out: reading the file reports it.
fn imports(text: &str, environment: &BTreeMap<String, String>) -> Vec<Import> {
    let Ok(Some(YamlNode {
        body: Body::Map(pairs),
        ..
    })) = tree::parse(text, 0)
    else {
        return Vec::new();
    };
    let is_imports = |key: &YamlNode| {
        let Body::Scalar { text, .. } = &key.body else {
            return false;
        };
        find(ROOT, text).is_some_and(|found| found.key.name == IMPORTS)
    };
    let Some((_, value)) = pairs.into_iter().find(|(key, _)| is_imports(key)) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut add = |text: &str, span: TextSpan, n: usize| {
        let path = KeyPath::default().name(IMPORTS).index(n);
        found.push(Import {
            pattern: text.to_owned(),
            span,
            path,
        });
    };
    if let Body::List(nodes) = &value.body {
        for (n, node) in nodes.iter().enumerate().filter(|(_, node)| !node.is_null()) {
            if let Some(text) = filled(node, environment) {
                add(&text, node.span, n);
            }
        }
    } else if let Some(text) = filled(&value, environment).filter(|_| !value.is_null()) {
        let words = text.split(',').map(str::trim);
        for (n, word) in words.filter(|word| !word.is_empty()).enumerate() {
            add(word, value.span, n);
        }
    }
    found
}

fn filled(node: &YamlNode, environment: &BTreeMap<String, String>) -> Option<String> {
    let Body::Scalar { text, .. } = &node.body else {
        return None;
    };
    let filled = interpolate(text, environment).ok()?;
    Some(filled.unwrap_or_else(|| text.clone()))
}
