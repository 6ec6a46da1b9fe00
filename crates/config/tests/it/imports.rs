//! Files that import others stand over them, and each position names its file.

use std::collections::BTreeMap;

use tidegate_config::{Color, Files, Inputs, Loaded, load_with};

/// Files in memory, found by their names and by one star at the end of a name.
#[derive(Default)]
struct Memory(BTreeMap<String, String>);

impl Memory {
    fn of(files: &[(&str, &str)]) -> Self {
        let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        Self(files.iter().map(owned).collect())
    }
}

impl Files for Memory {
    fn find(&mut self, _importer: &str, pattern: &str) -> Result<Vec<String>, String> {
        if pattern.contains("**") {
            return Err("has too many stars".to_owned());
        }
        Ok(match pattern.strip_suffix('*') {
            Some(start) => {
                let matching = self.0.keys().filter(|name| name.starts_with(start));
                matching.cloned().collect()
            }
            None => vec![pattern.to_owned()],
        })
    }

    fn read(&mut self, name: &str) -> Result<String, String> {
        let text = self.0.get(name).cloned();
        text.ok_or_else(|| "cannot be read: it is not there".to_owned())
    }
}

fn of(text: &str, files: &[(&str, &str)]) -> Loaded {
    let inputs = Inputs::of_text("tidegate.yaml", text);
    load_with(&inputs, &mut Memory::of(files))
}

#[test]
fn the_importing_file_wins_and_later_imports_win_over_earlier_ones() {
    let loaded = of(
        "imports: [conf.d/*]\nstore: {max-connections: 1}\n",
        &[
            (
                "conf.d/a",
                "store: {max-connections: 2}\nqueue: {batch-size: 2, concurrency: 2}\n",
            ),
            ("conf.d/b", "queue: {batch-size: 3}\n"),
        ],
    );
    assert_eq!(loaded.problems.to_string(), "");
    let origin = |path: &str| loaded.config.origin(path).unwrap().to_string();
    assert_eq!(origin("store.max-connections"), "tidegate.yaml:2:26");
    assert_eq!(origin("queue.batch-size"), "conf.d/b:1:21");
    assert_eq!(origin("queue.concurrency"), "conf.d/a:2:37");
}

#[test]
fn a_problem_names_the_file_it_is_in() {
    let loaded = of(
        "imports: [a, b]\neventbus: {bindings: {x: {}}}\n",
        &[
            ("a", "\nstore: {max-connections: many}\n"),
            (
                "b",
                "\n\nsever: {}\nserver: {token: \"hunter2\", listen: [}\n",
            ),
        ],
    );
    insta::assert_snapshot!(loaded.problems.to_string(), @r#"
    a:2:26: store.max-connections: is "many", and must be a whole number
    b:4:36: is not valid YAML: mismatched bracket '[' closed by '}'
    tidegate.yaml:2:23: eventbus.bindings.x.group-id: is missing and must be given
    tidegate.yaml:2:23: eventbus.bindings.x.topic: is missing and must be given
    "#);
    let rendered = loaded.problems.render(Color::Never);
    assert!(rendered.contains("--> a:2:26"), "{rendered}");
    assert!(!rendered.contains("hunter2"), "{rendered}");
}

#[test]
fn an_import_that_cannot_be_followed_is_named_where_it_stands() {
    let loaded = of(
        "imports:\n  - none.d/*\n  - missing\n  - ba**\n  - loop-a\n  - ${NOT_SET}\n  - tidegate.yaml\n",
        &[
            ("loop-a", "imports: loop-b\n"),
            ("loop-b", "\nimports: [loop-a]\n"),
        ],
    );
    insta::assert_snapshot!(loaded.problems.to_string(), @r#"
    loop-b:2:11: imports[0]: leads back to `loop-a`
    tidegate.yaml:3:5: imports[1]: `missing` cannot be read: it is not there
    tidegate.yaml:4:5: imports[2]: `ba**` has too many stars
    tidegate.yaml:6:5: imports[4]: needs the variable `NOT_SET`, which is not set (set it, or give a default: `${NOT_SET:-…}`)
    tidegate.yaml:7:5: imports[5]: leads back to `tidegate.yaml`
    "#);
    insta::assert_snapshot!(loaded.warnings.to_string(), @"tidegate.yaml:2:5: imports[0]: `none.d/*` matches no file");
}

#[test]
fn depth_and_number_of_files_have_limits() {
    let chain: Vec<(String, String)> = (0..20)
        .map(|n| (format!("f{n}"), format!("imports: [f{}]\n", n + 1)))
        .collect();
    let chain: Vec<(&str, &str)> = chain
        .iter()
        .map(|(a, b)| (a.as_str(), b.as_str()))
        .collect();
    insta::assert_snapshot!(of("imports: [f0]\n", &chain).problems.to_string(), @"f7:1:11: imports[0]: imports more than 8 files in a row");
    let many: Vec<String> = (0..100).map(|n| format!("m{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "")).collect();
    insta::assert_snapshot!(of("imports: [m*]\n", &many).problems.to_string(), @"tidegate.yaml:1:11: imports[0]: brings in more than 64 files");
}

#[test]
fn a_file_that_two_import_is_read_once() {
    let loaded = of(
        "imports: [a, b]\n",
        &[
            ("a", "imports: [base]\nstore: {max-connections: 2}\n"),
            ("b", "imports: [base]\n"),
            ("base", "store: {max-connections: 3}\n"),
        ],
    );
    assert_eq!(loaded.problems.to_string(), "");
    assert_eq!(loaded.config.integer("store.max-connections"), Some(2));
}

#[test]
fn imports_are_followed_in_files_only() {
    insta::assert_snapshot!(crate::problems("imports: [a]\n"), @"tidegate.yaml:1:11: imports[0]: `a` is a file, and only texts are read here");
    insta::assert_snapshot!(crate::with("", &[("TIDEGATE__IMPORTS", "a")]).problems.to_string(), @"environment: imports: variable `TIDEGATE__IMPORTS`: is followed in files only");
}
