//! The six example processes, with random records: the same as the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::{Code, FailureClass};
use tidegate_flow::expression::EvaluationFailure;
use tidegate_flow::model::{ModelScript, ScriptedAnswer, ScriptedFailure};
use tidegate_flow::value::JsonRecord;
use tidegate_stage::operators::{ChainOptions, RegisteredFunctions};

use super::differential::timed;
use super::harness::{Act, compare, plan};

/// Random numbers of a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn pick<'t>(&mut self, of: &[&'t str]) -> &'t str {
        let sides = of.len() as u64;
        of[usize::try_from(self.roll(sides)).unwrap()]
    }
}

fn play(
    file: &str,
    process: &str,
    longest_advance_s: u64,
    outside: fn() -> (ModelScript, ChainOptions),
    make: fn(&mut Dice) -> (&'static str, String),
) {
    let path = format!(
        "{}/../../examples/flows/{file}.flow",
        env!("CARGO_MANIFEST_DIR")
    );
    let plan = plan(&std::fs::read_to_string(path).unwrap());
    let seeds = match std::env::var_os("TIDEGATE_LONG") {
        Some(_) => 500,
        None => 20,
    };
    for seed in 0..seeds {
        let mut dice = Dice(seed);
        let mut acts = Vec::new();
        for _ in 0..60 {
            if dice.roll(6) == 0 {
                acts.push(Act::Advance(dice.roll(longest_advance_s) * 1_000));
                continue;
            }
            let (stream, value) = make(&mut dice);
            acts.push(Act::Send {
                stream: stream.to_owned(),
                key: Some(format!("k{}", dice.roll(3))),
                after: dice.roll(30) * 1_000,
                value,
            });
        }
        let acts = timed(acts);
        for restarts in [false, true] {
            compare((&plan, process), outside(), &acts, restarts);
        }
    }
}

fn nothing() -> (ModelScript, ChainOptions) {
    (ModelScript::default(), ChainOptions::default())
}

fn down(class: FailureClass) -> EvaluationFailure {
    EvaluationFailure {
        class,
        code: Code::from_static("timeout.connect"),
        message: "the script lets it fail".to_owned(),
    }
}

/// Customers that are gold, standard, away or refused. None fails for a while: the runtime tries again at once, and the
/// model waits.
fn customers() -> (ModelScript, ChainOptions) {
    let gold = JsonRecord::of_text(r#"{"tier":"gold"}"#).unwrap();
    let standard = JsonRecord::of_text(r#"{"tier":"standard"}"#).unwrap();
    let fails = Some(ScriptedFailure {
        code: Code::from_static("timeout.connect"),
        class: FailureClass::Permanent,
        times: None,
    });
    let answers = [
        ("c1", Some(gold.clone()), None),
        ("c2", None, fails.clone()),
        ("c3", Some(standard.clone()), None),
        ("c4", None, fails),
    ];
    let answers =
        answers.map(|(key, value, failure)| (key.to_owned(), ScriptedAnswer { value, failure }));
    let script = ModelScript {
        lookups: BTreeMap::from([("customers".to_owned(), BTreeMap::from(answers))]),
        ..ModelScript::default()
    };
    let functions = RegisteredFunctions::default().lookup("customers", move |key| match key {
        "c1" => Ok(Some(gold.clone())),
        "c2" | "c4" => Err(Box::new(down(FailureClass::Permanent))),
        "c3" => Ok(Some(standard.clone())),
        _ => Ok(None),
    });
    let options = ChainOptions {
        functions: Arc::new(functions),
        ..ChainOptions::default()
    };
    (script, options)
}

#[test]
fn loans_are_enriched_scored_and_routed() {
    play("loan", "loan_enrich", 60, customers, |dice| {
        let customer = dice.pick(&["c1", "c2", "c3", "c4", "c5", ""]);
        let amount = dice.pick(&["10", "1000.00", "50000.01", "0", "1000001", "\"x\""]);
        let term = dice.pick(&["12", "119", "240", "481"]);
        let (loan, at) = (dice.roll(5), dice.roll(60));
        let value = format!(
            r#"{{"loan_id":"l{loan}","customer_id":"{customer}","amount":{amount},"term_months":{term},"occurred_at":"@-{at}"}}"#
        );
        ("loan_events", value)
    });
}

#[test]
fn authorizations_meet_their_captures() {
    play("auth", "auth_match", 400_000, nothing, |dice| {
        let (code, amount) = (dice.roll(4), dice.roll(100));
        let text = format!(r#"{{"auth_code":"a{code}","amount":{amount}.50"#);
        match dice.roll(3) {
            0 => ("capture_events", format!(r#"{text},"merchant":"m"}}"#)),
            1 if dice.roll(5) == 0 => ("capture_events", format!("{text}}}")),
            _ => ("auth_events", format!("{text}}}")),
        }
    });
}

#[test]
fn orders_are_assembled() {
    play(
        "order_assembly",
        "order_assembly",
        60_000,
        nothing,
        |dice| {
            let order = dice.roll(5);
            match dice.roll(3) {
                0 => (
                    "order_headers",
                    format!(r#"{{"order_id":"o{order}","customer_id":"c"}}"#),
                ),
                1 if dice.roll(6) == 0 => ("order_lines", format!(r#"{{"order_id":"o{order}"}}"#)),
                _ => {
                    let sku = dice.roll(9);
                    (
                        "order_lines",
                        format!(r#"{{"order_id":"o{order}","sku":"s{sku}"}}"#),
                    )
                }
            }
        },
    );
}

#[test]
fn sales_are_added_up_by_the_hour() {
    play("sales", "hourly_sales", 600, nothing, |dice| {
        let (sale, region, amount) = (dice.roll(30), dice.roll(2), dice.roll(100));
        let discount = dice.pick(&["", r#""discount":1.25,"#]);
        let ts = dice.roll(5_000);
        let value = format!(
            r#"{{"sale_id":"s{sale}","region":"r{region}","amount":{amount}.10,{discount}"ts":"@-{ts}"}}"#
        );
        ("sale_events", value)
    });
}

#[test]
fn orders_meet_their_payments() {
    play("payments", "order_with_payment", 3_000, nothing, |dice| {
        let (order, amount) = (dice.roll(4), dice.roll(20));
        match dice.roll(2) {
            0 => (
                "order_events",
                format!(r#"{{"order_id":"o{order}","total":{amount}}}"#),
            ),
            _ => (
                "payment_events",
                format!(r#"{{"order_id":"o{order}","amount":{amount}}}"#),
            ),
        }
    });
}

#[test]
fn accounts_are_set_up_and_reported() {
    play("account", "create_account", 60_000, nothing, |dice| {
        let (correlation, request) = (dice.roll(4), dice.roll(9));
        let owner = dice.pick(&["ada", "bob", ""]);
        let value = format!(
            r#"{{"correlation_id":"x{correlation}","request_id":"r{request}","owner":"{owner}"}}"#
        );
        ("account_requests", value)
    });
}
