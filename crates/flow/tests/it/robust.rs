//! No bytes panic, hang or take more than their limits.

use std::time::Instant;

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use tidegate_flow::check::{Registered, check_flows};
use tidegate_flow::syntax::{
    MAX_DIAGNOSTICS, MAX_FILE, MAX_STEPS_PER_BYTE, RESERVED, parse, print,
};

use crate::{names, read};

/// A million with `TIDEGATE_LONG=1`.
pub(crate) fn count() -> usize {
    if std::env::var("TIDEGATE_LONG").is_ok_and(|value| value == "1") {
        1_000_000
    } else {
        3_000
    }
}

fn corpus() -> Vec<String> {
    let mut texts = Vec::new();
    for directory in ["../../examples/flows", "tests/grammar", "codes"] {
        for name in names(directory)
            .iter()
            .filter(|name| name.ends_with(".flow"))
        {
            texts.push(read(&format!("{directory}/{name}")));
        }
    }
    texts
}

pub(crate) struct Dice(TestRng);

impl Dice {
    pub(crate) fn new(seed: u8) -> Self {
        Self(TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]))
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.next_u64() % end.max(1) as u64).unwrap()
    }
}

/// A text with a few pieces removed, repeated, moved or replaced.
fn mutated(texts: &[String], dice: &mut Dice) -> String {
    const PIECES: [&str; 24] = [
        "end",
        "process",
        "(",
        ")",
        "{",
        "\"",
        "'",
        "/*",
        "//",
        "|",
        "=>",
        "..",
        ",",
        "=",
        "-",
        "@",
        "5",
        "1h30m",
        "é",
        "\u{0}",
        "transform",
        "when slow strategy",
        "`",
        "\n",
    ];
    let mut words: Vec<&str> = texts[dice.below(texts.len())]
        .split_inclusive([' ', '\n', '(', '|'])
        .collect();
    for _ in 0..=dice.below(4) {
        let at = dice.below(words.len());
        match dice.below(5) {
            0 if words.len() > 1 => drop(words.remove(at)),
            1 => words.insert(at, PIECES[dice.below(PIECES.len())]),
            2 => {
                let other: Vec<&str> = texts[dice.below(texts.len())]
                    .split_inclusive(' ')
                    .collect();
                words.insert(at, other[dice.below(other.len())]);
            }
            3 => {
                let from = dice.below(words.len());
                let word = words[from];
                words.insert(at, word);
            }
            _ => words.truncate(at + 1),
        }
    }
    words.concat()
}

#[test]
fn mutated_files_neither_panic_nor_take_more_steps_than_allowed() {
    let texts = corpus();
    let mut dice = Dice::new(7);
    let mut slowest = (0, String::new());
    let mut most = 0;
    for _ in 0..count() {
        let text = mutated(&texts, &mut dice);
        let start = Instant::now();
        let (tree, _) = parse(&text, 0);
        let flows = check_flows(&[&text], &Registered::default());
        assert!(flows.diagnostics.len() <= MAX_DIAGNOSTICS, "{text}");
        assert!(print(&tree).len() <= 4 * text.len() + 1_000_000);
        let micros = start.elapsed().as_micros();
        if micros > slowest.0 {
            slowest = (micros, text.clone());
        }
        most = most.max(tree.steps() / (text.len() as u64 + 1));
        assert!(
            tree.steps() <= MAX_STEPS_PER_BYTE * (text.len() as u64 + 1),
            "{} steps: {text}",
            tree.steps()
        );
    }
    println!(
        "at most {most} steps per byte; the slowest took {} µs:\n{}",
        slowest.0, slowest.1
    );
}

#[test]
fn what_parses_after_a_mutation_prints_and_parses_the_same() {
    let texts = corpus();
    let mut dice = Dice::new(11);
    for _ in 0..count() {
        let text = mutated(&texts, &mut dice);
        if parse(&text, 0).1.iter().all(|found| !found.is_error()) {
            let (tree, _) = parse(&text, 0);
            let printed = print(&tree);
            let (again, found) = parse(&printed, 0);
            assert!(
                found.iter().all(|found| !found.is_error()),
                "{text}\n{printed}\n{found:?}"
            );
            assert_eq!(again.outline(), tree.outline(), "{text}\n{printed}");
            assert_eq!(print(&again), printed, "{text}");
        }
    }
}

#[test]
fn reserved_words_in_the_place_of_any_name_are_findings() {
    let text = "schema NAME f: string end
lookup NAME key f f: string end
transform NAME apply x = 1 end end
decision_table NAME | f => r | | * => 1 | end
process NAME
    receive NAME from a schema NAME
    enrich using NAME on f
    transform using NAME
    hold NAME keyed by f timeout 1h emit to NAME into NAME
    route using NAME \"x\" to NAME
    on commit emit completion to NAME correlation f
    state local NAME keyed by f type map end
    metrics counter NAME end
    checkpoint every 5m to NAME
end
";
    let places = text.matches("NAME").count();
    for word in RESERVED {
        for place in 0..places {
            let mut at = 0;
            let parts = text.split("NAME").map(|part| {
                at += 1;
                match at {
                    _ if at > places => part.to_owned(),
                    _ if at == place + 1 => format!("{part}{word}"),
                    _ => format!("{part}n{at}"),
                }
            });
            let text: String = parts.collect();
            let flows = check_flows(&[&text], &Registered::default());
            assert!(flows.plan.is_none(), "{text}");
        }
    }
}

#[test]
fn limits_are_named() {
    let fields = |n: usize| {
        let fields: String = (0..n).map(|n| format!("f{n}: string\n")).collect();
        format!("schema s {fields} end")
    };
    let assignments = |n: usize| {
        let fields: String = (0..n).map(|n| format!("f{n} = 1\n")).collect();
        format!("process p receive a transform {fields} emit to b end")
    };
    let deep = |n: usize| {
        format!(
            "schema s a: {}string{} end",
            "list<".repeat(n),
            ">".repeat(n)
        )
    };
    let brackets = |n: usize| {
        format!(
            "process p receive a filter {}x{} emit to b end",
            "(".repeat(n),
            ")".repeat(n)
        )
    };
    let long = format!(
        "process p receive a filter \"{}\" == x emit to b end",
        "x".repeat(20_000)
    );
    for (text, limit) in [
        (deep(70), "nesting"),
        (deep(100_000), "nesting"),
        (brackets(70), "nesting"),
        (brackets(100_000), "nesting"),
        (long, "expression"),
        (
            format!("process {} receive a emit to b end", "p".repeat(129)),
            "name",
        ),
        ("x".repeat(MAX_FILE + 1), "file"),
        ("schema s a: wrong end\n".repeat(500), "diagnostics"),
        (fields(1_001), "fields"),
        (assignments(1_001), "fields"),
    ] {
        let flows = check_flows(&[&text], &Registered::default());
        let last = flows
            .diagnostics
            .iter()
            .find(|found| found.code == "TG0016");
        let last = last.unwrap_or_else(|| panic!("{limit}: {:?}", flows.diagnostics));
        assert!(
            last.message.contains(&format!("`{limit}`")),
            "{limit}: {}",
            last.message
        );
        assert!(flows.plan.is_none());
    }
    for text in [deep(60), brackets(50), fields(1_000), assignments(1_000)] {
        assert!(
            check_flows(&[&text], &Registered::default()).plan.is_some(),
            "{text}"
        );
    }
}

#[test]
fn a_large_file_takes_as_long_as_it_is() {
    let one = read("../../examples/flows/payments.flow");
    let many = |count: usize| {
        let texts = (0..count).map(|n| one.replace("order_with_payment", &format!("p{n}")));
        texts.collect::<String>()
    };
    let steps = |text: &str| parse(text, 0).0.steps();
    let (small, large) = (many(50), many(100));
    assert!(steps(&large) * 10 <= steps(&small) * 21);
    assert!(
        check_flows(&[&large], &Registered::default())
            .plan
            .is_some()
    );
}

#[test]
fn comments_behind_each_other_take_no_stack_and_count_as_steps() {
    let work = || {
        for comment in ["/**/", "//\n", "/* */ "] {
            let count = MAX_FILE / comment.len() - 20;
            let text = comment.repeat(count) + "process p receive i emit to o end";
            let flows = check_flows(&[&text], &Registered::default());
            assert!(flows.plan.is_some(), "{:?}", flows.diagnostics);
            let (tree, _) = parse(&text, 0);
            assert!(tree.steps() >= count as u64);
            assert!(print(&tree).contains("receive i"));
        }
    };
    let thread = std::thread::Builder::new().stack_size(512 << 10);
    thread.spawn(work).unwrap().join().unwrap();
}
