//! Random texts from the grammar itself: what it allows is parsed, and printed without a change of meaning.

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::grammar::rules;
use super::notation::{GrammarItem, TokenClass};
use super::{parse, print};

/// Parts inside each other, after which the shortest ones are taken.
const DEEP: usize = 12;

struct TextMaker {
    dice: TestRng,
    out: Vec<String>,
}

impl TextMaker {
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.dice.next_u64() % end.max(1) as u64).unwrap()
    }

    fn pick(&mut self, texts: &[&str]) {
        let at = self.below(texts.len());
        self.out.push(texts[at].to_owned());
    }

    fn item(&mut self, item: &'static GrammarItem, depth: usize) {
        match item {
            GrammarItem::Word(word) => self.out.push((*word).to_owned()),
            GrammarItem::Class(class) => self.class(*class),
            GrammarItem::Rule(_, index) => self.item(&rules()[*index].item, depth + 1),
            GrammarItem::Sequence(items) => items.iter().for_each(|item| self.item(item, depth)),
            GrammarItem::Choice(items) if depth > DEEP => self.item(&items[0], depth + 1),
            GrammarItem::Choice(items) => {
                let at = self.below(items.len());
                self.item(&items[at], depth + 1);
            }
            GrammarItem::Optional { item, is_published } => {
                if *is_published && depth <= DEEP && self.below(2) == 0 {
                    self.item(item, depth + 1);
                }
            }
            GrammarItem::List(item, marks) => {
                // A clause of a list may be given once, and which one comes next is not known here.
                let most = if marks.each_once { 2 } else { 4 };
                let count = if depth > DEEP { 0 } else { self.below(most) };
                for _ in 0..count.max(usize::from(marks.at_least_one)) {
                    self.item(item, depth + 1);
                }
            }
            GrammarItem::Labeled(_, item)
            | GrammarItem::Line(_, item)
            | GrammarItem::Coded(_, item) => self.item(item, depth),
            GrammarItem::Look(_) => {}
        }
    }

    fn class(&mut self, class: TokenClass) {
        match class {
            TokenClass::Name => self.pick(&["a", "b_2", "`end`", "amount", "x"]),
            TokenClass::Field => self.pick(&["f", "correlationId", "`to`", "to", "key"]),
            TokenClass::Int => self.pick(&["1", "42"]),
            TokenClass::Num => self.pick(&["1", "0.5", "250.75"]),
            TokenClass::ShortDuration => self.pick(&["250ms", "5s", "1h", "2w"]),
            TokenClass::Text => self.pick(&["\"\"", "\"a \\\" b\"", "\"// no comment\""]),
            TokenClass::Expression => self.pick(&[
                "a",
                "a > -1",
                "(a.b)",
                "f(a, [1, 2])[0] ? {\"k\": 1} : !b",
                "a in [\"x\"] && b == 'y'",
            ]),
        }
    }
}

#[test]
fn random_texts_of_the_grammar_print_and_parse_the_same() {
    let is_long = std::env::var_os("TIDEGATE_LONG").is_some_and(|value| value == "1");
    let count = if is_long { 1_000_000 } else { 3_000 };
    let dice = TestRng::from_seed(RngAlgorithm::ChaCha, &[5; 32]);
    let mut maker = TextMaker {
        dice,
        out: Vec::new(),
    };
    let mut parsed = 0;
    for _ in 0..count {
        maker.out.clear();
        let declared = ["process", "schema", "lookup", "transform", "decision"];
        let name = declared[maker.below(declared.len())];
        let declaration = rules().iter().position(|rule| rule.name == name).unwrap();
        maker.item(&rules()[declaration].item, 0);
        let glue = ["\n", " ", " /* c */ ", " // c\n"][maker.below(4)];
        let text = maker.out.join(glue);
        let (tree, found) = parse(&text, 0);
        // The generator does not look ahead, so some of its texts have words that the parser reads otherwise.
        if found.iter().any(|found| found.is_error()) {
            continue;
        }
        parsed += 1;
        let printed = print(&tree);
        let (again, found) = parse(&printed, 0);
        assert!(
            found.iter().all(|found| !found.is_error()),
            "{text}\n---\n{printed}\n{found:?}"
        );
        assert_eq!(again.outline(), tree.outline(), "{text}\n---\n{printed}");
        assert_eq!(
            again.comments.len(),
            tree.comments.len(),
            "{text}\n---\n{printed}"
        );
        assert_eq!(print(&again), printed, "{text}");
    }
    assert!(
        parsed * 3 > count,
        "only {parsed} of {count} texts could be parsed"
    );
}
