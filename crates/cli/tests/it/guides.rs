//! The console blocks of the README and the guides.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Ran, run};
use crate::help::commands_below;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The README and every guide, by name.
fn pages() -> Vec<(String, String)> {
    let guides = root().join("docs/guides");
    let entries = std::fs::read_dir(guides).unwrap();
    let guides = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = guides.chain([root().join("README.md")]).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// The blocks of a language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    let parts = page.split(&start).skip(1);
    parts
        .filter_map(|part| Some(part.split_once("```")?.0.to_owned()))
        .collect()
}

/// The calls of the binary in a block, each as its words.
fn calls(block: &str) -> Vec<Vec<String>> {
    let joined = block.replace("\\\n", " ");
    let mut calls = Vec::new();
    for line in joined.lines() {
        let line = line.split(" #").next().unwrap_or_default();
        for part in line.split(['|', ';', '&', '<', '>']) {
            let words: Vec<String> = part.split_whitespace().map(str::to_owned).collect();
            if words.first().is_some_and(|word| word == "tidegate") {
                calls.push(words[1..].to_vec());
            }
        }
    }
    calls
}

#[test]
fn every_command_and_flag_of_a_console_block_exists() {
    let mut helps: BTreeMap<Vec<String>, String> = BTreeMap::new();
    let mut help = |path: &[String]| {
        let known = helps.entry(path.to_vec()).or_insert_with(|| {
            let words: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
            run(&words).stdout
        });
        known.clone()
    };
    let mut checked = 0;
    for (name, page) in pages() {
        let blocks = ["sh", "console", "bash"]
            .iter()
            .flat_map(|language| blocks(&page, language));
        for call in blocks.flat_map(|block| calls(&block)) {
            let mut path: Vec<String> = Vec::new();
            for word in &call {
                if !commands_below(&help(&path)).contains(word) {
                    break;
                }
                path.push(word.clone());
            }
            assert!(!path.is_empty(), "{name}: `tidegate {}`", call.join(" "));
            let text = help(&path);
            for flag in call
                .iter()
                .filter(|word| word.starts_with('-') && word.len() > 1)
            {
                let flag = flag.split('=').next().unwrap();
                let is_number = flag[1..].starts_with(|letter: char| letter.is_ascii_digit());
                assert!(
                    is_number || text.contains(flag),
                    "{name}: `tidegate {}` has no {flag}",
                    call.join(" ")
                );
            }
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked} calls");
}

/// A text with all ids, times and numbers made alike.
fn shape(text: &str) -> Vec<String> {
    let shape = |line: &str| {
        let words = line.split_whitespace().map(|word| {
            let is_id = word.len() == 36 && word.matches('-').count() == 4;
            let digits = |letter: char| letter.is_ascii_digit();
            match is_id {
                true => "ID".to_owned(),
                // Of any length: a port, an offset, a size.
                false => word
                    .split(digits)
                    .filter(|part| !part.is_empty())
                    .collect::<Vec<_>>()
                    .join("0"),
            }
        });
        words.collect::<Vec<String>>().join(" ")
    };
    text.lines().map(shape).collect()
}

/// A block of commands, and the output that stands behind it.
#[derive(Debug)]
struct Block {
    /// Which one of its page, from 0 on.
    number: usize,
    commands: String,
    shown: Vec<String>,
    /// Whether its lines begin with `$`, and all others are output.
    is_session: bool,
}

impl Block {
    /// The blocks of a page, in their order.
    fn all(page: &str) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        let mut takes_output = false;
        let mut rest = page;
        while let Some((between, fenced)) = rest.split_once("```") {
            let Some((head, text)) = fenced.split_once('\n') else {
                break;
            };
            let (text, behind) = text.split_once("```").unwrap();
            rest = behind;
            takes_output &= !between.lines().any(|line| line.starts_with('#'));
            match head {
                "sh" | "bash" | "console" => {
                    found.push(Self::of(found.len(), text));
                    takes_output = true;
                    continue;
                }
                "text" if takes_output => {
                    let last = found.last_mut().unwrap();
                    last.shown.extend(text.lines().map(str::to_owned));
                }
                _ => {}
            }
            takes_output = false;
        }
        found
    }

    fn of(number: usize, text: &str) -> Self {
        let is_session = text.starts_with("$ ");
        let (commands, shown): (Vec<&str>, Vec<&str>) = text
            .lines()
            .partition(|line| !is_session || line.starts_with("$ "));
        let commands: Vec<&str> = commands
            .into_iter()
            .map(|line| match is_session {
                true => &line[2..],
                false => line,
            })
            .collect();
        Self {
            number,
            commands: commands.join("\n"),
            shown: shown.into_iter().map(str::to_owned).collect(),
            is_session,
        }
    }

    /// Whether it builds or installs something first.
    fn builds(&self) -> bool {
        self.commands
            .lines()
            .any(|line| line.starts_with("cargo ") || line.starts_with("target/"))
    }
}

/// A block that needs something, or does not end with 0, or takes its time.
#[derive(Debug, Default, Clone, Copy)]
struct Scene {
    page: &'static str,
    number: usize,
    /// Commands before it.
    prepared: &'static str,
    code: i32,
    /// Whether it is left to the long run.
    is_long: bool,
}

/// All blocks that are not run as they stand, in an empty directory, with 0 as their exit code.
const SCENES: &[Scene] = &[
    Scene {
        page: "README.md",
        number: 2,
        is_long: true,
        ..NONE
    },
    Scene {
        page: "connector.md",
        prepared: "ln -s \"$ROOT/examples\" examples",
        is_long: true,
        ..NONE
    },
    Scene {
        page: "flow.md",
        // It shows a mistake.
        code: 3,
        ..NONE
    },
    Scene {
        page: "flow.md",
        number: 3,
        prepared: "cp shop.flow old.flow; cp shop.flow new.flow",
        ..NONE
    },
    Scene {
        page: "log.md",
        number: 1,
        prepared: "tidegate send orders --partition 0 --value damaged-value
LC_ALL=C sed -i s/damaged-value/DAMAGED-value/ data/log/topic-orders/0-*.seg data/log/journal-*",
        ..NONE
    },
    Scene {
        page: "outbox.md",
        number: 2,
        prepared: "tidegate run &",
        is_long: true,
        ..NONE
    },
    Scene {
        page: "stage.md",
        prepared: "cat > order_totals.flow <<'END'
process order_totals
    receive orders filter amount > 0
    transform state.total = state.total + amount total = state.total
    emit to totals
    state
        local total keyed by customer type counter
    end
end
END
cat > tidegate.yaml <<'END'
flows: [ \"*.flow\" ]
streams: { orders: { partitions: 1 }, totals: {}, order_totals_dlq: {} }
checkpoints: { default: { path: ./data/checkpoints, retain: 3 } }
END
tidegate run &
until tidegate stage ls | grep -q RUNNING; do sleep 0.1; done
tidegate send orders --key a --value '{\"customer\":\"a\",\"amount\":5}'
until tidegate tail totals --until end | grep -q total; do sleep 0.1; done
kill %1 && wait",
        is_long: true,
        ..NONE
    },
];

const NONE: Scene = Scene {
    page: "",
    number: 0,
    prepared: "",
    code: 0,
    is_long: false,
};

/// The five minutes have a script of their own.
const FIVE_MINUTES: (&str, usize) = ("README.md", 4);

/// It stands before every block: `curl` waits for the port, and nothing that a block starts outlives it.
const PRELUDE: &str = r#"
trap 'jobs -p | xargs -r kill 2>/dev/null' EXIT
curl() {
    until (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; do sleep 0.02; done
    command curl "$@"
}
"#;

pub(crate) fn is_long() -> bool {
    std::env::var_os("TIDEGATE_LONG").is_some_and(|long| long != "0")
}

/// Runs a block in a directory. Demos have tests of their own, and are played in the long run.
fn run_block(dir: &Path, block: &Block, scene: Scene, port: u16) -> Ran {
    let is_played = |line: &&str| is_long() || !line.starts_with("tidegate demo");
    let commands: Vec<&str> = block.commands.lines().filter(is_played).collect();
    let commands = commands.join("\n").replace("8080", &port.to_string());
    let ends = if block.is_session {
        ""
    } else {
        "set -euo pipefail\n"
    };
    let script = format!("{PRELUDE}{}\n{ends}{commands}\n", scene.prepared);
    let bin = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let mut command = Command::new("bash");
    command
        .args(["-c", &format!("exec 2>&1\n{script}")])
        .current_dir(dir)
        .env_clear()
        .env(
            "PATH",
            format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()),
        )
        .env("ROOT", root())
        .env("PORT", port.to_string())
        .env("LOG_EMBEDDED_JOURNAL_SIZE", "1MiB")
        .env("SERVER_LISTEN", format!("127.0.0.1:{port}"));
    Ran::from(command.output().unwrap())
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Runs all blocks of a page, one after the other in one directory.
fn run_page(name: &str, page: &str) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let mut at = dir.path().to_owned();
    let mut count = 0;
    for block in Block::all(page) {
        let scene = SCENES
            .iter()
            .find(|one| (one.page, one.number) == (name, block.number));
        let scene = scene.copied().unwrap_or(NONE);
        let is_five_minutes = (name, block.number) == FIVE_MINUTES;
        if block.builds() || is_five_minutes || (scene.is_long && !is_long()) {
            continue;
        }
        let ran = run_block(&at, &block, scene, free_port());
        let code = if block.is_session {
            ran.code
        } else {
            Some(scene.code)
        };
        assert_eq!(
            ran.code, code,
            "{name}:\n{}\n{}",
            block.commands, ran.stdout
        );
        let said = shape(&ran.stdout);
        for line in shape(&block.shown.join("\n")) {
            assert!(
                said.contains(&line),
                "{name}: `{line}` is not in\n{}\n{said:#?}",
                ran.stdout
            );
        }
        // The first command of a page may make a directory and go there.
        if let Some(inner) = block
            .commands
            .lines()
            .next()
            .and_then(|line| line.split_once("&& cd "))
        {
            at = at.join(inner.1.trim());
        }
        count += 1;
    }
    count
}

#[test]
fn the_console_blocks_of_the_guides_run_as_written() {
    let pages = pages();
    let running = pages.iter().map(|(name, page)| {
        // They wait for processes that start: together they take as long as the slowest.
        let (name, page) = (name.clone(), page.clone());
        std::thread::spawn(move || run_page(&name, &page))
    });
    let running: Vec<_> = running.collect();
    let counts = running.into_iter().map(|one| one.join().unwrap());
    let count: usize = counts.sum();
    let least = if is_long() { 11 } else { 7 };
    assert!(count >= least, "{count} blocks were run");
}
