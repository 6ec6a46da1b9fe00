//! Random trees: sentences of the published grammar are printed, parsed and the same.

use std::collections::BTreeMap;

use tidegate_flow::syntax::{parse, print, published};

use crate::robust::{Dice, count};

/// A piece of the published grammar.
enum Piece {
    Word(String),
    Rule(String),
    Sequence(Vec<Self>),
    Choice(Vec<Self>),
    Optional(Box<Self>),
    List(Box<Self>),
}

/// Reads the alternatives up to a closing mark.
fn choice<'t>(tokens: &mut impl Iterator<Item = &'t str>) -> Piece {
    let (mut all, mut sequence) = (Vec::new(), Vec::new());
    loop {
        match tokens.next() {
            Some("|") => all.push(Piece::Sequence(std::mem::take(&mut sequence))),
            Some("(") => sequence.push(choice(tokens)),
            Some("[") => sequence.push(Piece::Optional(Box::new(choice(tokens)))),
            Some("{") => sequence.push(Piece::List(Box::new(choice(tokens)))),
            Some(")" | "]" | "}" | ";") | None => break,
            Some(word) => sequence.push(match word.strip_prefix('"') {
                Some(word) => Piece::Word(word.trim_end_matches('"').to_owned()),
                None => Piece::Rule(word.to_owned()),
            }),
        }
    }
    all.push(Piece::Sequence(sequence));
    Piece::Choice(all)
}

struct Sentences {
    rules: BTreeMap<String, Piece>,
    dice: Dice,
}

impl Sentences {
    /// Writes a sentence; deeper ones have fewer optional parts.
    fn write(&mut self, piece: &Piece, depth: usize, out: &mut Vec<String>) {
        const EXPRESSIONS: [&str; 12] = [
            "amount > 100.0",
            "a.b + c[0]",
            "\"x\"",
            "kind == \"y\" ? 1 : -2",
            "!(a && b || has(c.d))",
            "l.filter(x, x > 0).size() in [1, 2]",
            "{\"k\": v, \"w\": [1u, 2.5]}",
            "decimal(\"12.50\") * n",
            "record.to != null",
            "state.n + 1",
            "f(a, b)",
            "7",
        ];
        const DURATIONS: [&str; 6] = ["5s", "250ms", "30m", "1h", "7d", "2w"];
        let mut pick = |texts: &[&str]| texts[self.dice.below(texts.len())].to_owned();
        match piece {
            Piece::Word(word) => out.push(word.clone()),
            Piece::Rule(name) => match name.as_str() {
                "NAME" => out.push(pick(&[
                    "a", "b_1", "orders", "count", "key", "x9", "`end`", "type",
                ])),
                "INT" => out.push(pick(&["0", "1", "42", "100000"])),
                "NUM" => out.push(pick(&["0", "7", "0.25", "12.50"])),
                "STRING" => out.push(pick(&["\"\"", "\"m\"", "\"a \\\" b\"", "\"é\""])),
                "SHORT_DURATION" => out.push(pick(&DURATIONS)),
                "expr" => out.push(pick(&EXPRESSIONS)),
                name => {
                    // Taken out while it is walked; a rule inside of itself is a short one.
                    let Some(rule) = self.rules.remove(name) else {
                        return out.push("string".to_owned());
                    };
                    self.write(&rule, depth + 1, out);
                    self.rules.insert(name.to_owned(), rule);
                }
            },
            Piece::Sequence(items) => {
                for item in items {
                    self.write(item, depth, out);
                }
            }
            Piece::Choice(all) => {
                let at = self.dice.below(all.len());
                self.write(&all[at], depth, out);
            }
            Piece::Optional(item) => {
                if self.dice.below(3) == 0 {
                    self.write(item, depth + 1, out);
                }
            }
            Piece::List(item) => {
                let most = if depth <= 2 { 5 } else { 3 };
                for _ in 0..self.dice.below(most) {
                    self.write(item, depth + 1, out);
                }
            }
        }
    }
}

#[test]
fn random_trees_are_printed_parsed_and_the_same() {
    let published = published();
    let rules = published.lines().map(|line| {
        let (name, rest) = line.split_once(" = ").unwrap();
        (name.to_owned(), choice(&mut rest.split_whitespace()))
    });
    let mut sentences = Sentences {
        rules: rules.collect(),
        dice: Dice::new(13),
    };
    let (wanted, mut trees, mut refused, mut bytes) = (count(), 0, 0_usize, 0);
    while trees < wanted {
        let mut words = Vec::new();
        sentences.write(&Piece::Rule("file".to_owned()), 0, &mut words);
        let text = words.join(" ");
        let (tree, found) = parse(&text, 0);
        // A clause that is given twice, or a value that stands where a name would.
        if found.iter().any(tidegate_flow::Diagnostic::is_error) {
            refused += 1;
            assert!(refused < 20 * (wanted + 100), "{text}\n{found:?}");
            continue;
        }
        let printed = print(&tree);
        let (again, found) = parse(&printed, 0);
        let is_right = !found.iter().any(tidegate_flow::Diagnostic::is_error);
        assert!(is_right, "{text}\n{printed}\n{found:?}");
        assert_eq!(again.outline(), tree.outline(), "{text}\n{printed}");
        assert_eq!(print(&again), printed, "{text}");
        trees += 1;
        bytes += text.len();
    }
    println!("{trees} trees of {bytes} bytes, {refused} sentences refused");
}
