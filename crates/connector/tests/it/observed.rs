//! The consumer's side of an outbox: its ladder, its poison, and what can be seen of both.

use std::cell::RefCell;
use std::fmt::{Debug, Write};
use std::sync::Once;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use tidegate_connector::{BindingOptions, TierOptions};
use tidegate_core::dead_letter::Reason;
use tidegate_log::{Append, Record};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Metadata, Subscriber};

use crate::scene::{Scene, Script, on_model, permanent, text, transient};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A binding of loan events with the ladder 1 s, 10 s, 30 s, 2 minutes.
fn loans() -> BindingOptions {
    let mut options = BindingOptions::new("loans", "loans", "notifications").unwrap();
    options.retry.tier0.max_attempts = 1;
    options.retry.tiers = [1, 10, 30, 120]
        .map(|seconds| TierOptions {
            max_attempts: 1,
            ..TierOptions::new(Duration::from_secs(seconds))
        })
        .into();
    options
}

/// Plays poison, a rule that is broken, and a good one.
async fn play(scene: Scene) -> (Script, Vec<tidegate_core::DeadLetter>) {
    let topic = scene.topic("loans", 1).await;
    let options = loans();
    let script = Script::new(&scene);
    let handler = script.answers(|record| {
        tracing::info!("handling");
        match text(record.value()).as_str() {
            "poison" => transient("timeout.read"),
            "invalid" => permanent("validation.amount"),
            _ => Ok(()),
        }
    });
    let traced = |value: &str| {
        let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
        let record = Record::new(value.to_owned()).header("traceparent", parent);
        Append::new(topic.clone(), record).partition(0)
    };
    let appends = ["poison", "invalid", "good"].map(traced).to_vec();
    scene.log.append(appends).await.unwrap();
    let connector = scene.start(options.clone(), handler).await;
    while scene.letters(&options).await.len() < 2 {
        scene.env.clock.sleep(Duration::from_secs(1)).await;
    }
    scene.until_committed(&options.group, &topic, 3).await;
    connector.stop("loans").await.unwrap();
    (script, scene.letters(&options).await)
}

#[test]
fn o14_o15_the_ladder_of_loan_events_ends_in_the_dead_letters() {
    on_model(|scene: Scene| async move {
        let (script, letters) = play(scene).await;
        let calls: Vec<_> = script
            .calls()
            .into_iter()
            .filter(|call| call.value == "poison")
            .collect();
        let waits: Vec<u64> = calls
            .windows(2)
            .map(|pair| (pair[1].at - pair[0].at).as_secs())
            .collect();
        assert_eq!(waits, [1, 10, 30, 120]);
        assert_eq!(script.count("invalid"), 1, "it goes there directly");
        assert_eq!(script.count("good"), 1, "the partition goes on");
        let found: Vec<_> = letters
            .iter()
            .map(|letter| {
                let (value, code) = (text(letter.value.as_ref()), letter.failure.code.to_string());
                (value, letter.reason, code)
            })
            .collect();
        let expect = [
            ("invalid", Reason::NonRetryable, "validation.amount"),
            ("poison", Reason::RetriesExhausted, "timeout.read"),
        ];
        assert_eq!(
            found,
            expect.map(|(value, reason, code)| (value.to_owned(), reason, code.to_owned()))
        );
    });
}

#[test]
fn o24_the_four_counters_tell_what_happened() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        on_model(|scene: Scene| async move {
            play(scene).await;
        });
    });
    let text = handle.render();
    let line = |name: &str, label: &str| {
        let mut lines = text.lines();
        let found = lines.find(|line| line.starts_with(name) && line.contains(label));
        let found = found.unwrap_or_else(|| panic!("no {name} {label} in {text}"));
        found.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(line("eventbus_records_processed", "loans"), "1");
    assert_eq!(line("eventbus_records_failed", "timeout.read"), "5");
    assert_eq!(line("eventbus_records_failed", "validation.amount"), "1");
    assert_eq!(line("eventbus_records_dlq", "RETRIES_EXHAUSTED"), "1");
    assert_eq!(line("eventbus_records_dlq", "NON_RETRYABLE"), "1");
    for tier in ["1", "2", "3", "4"] {
        let label = format!("tier=\"{tier}\"");
        assert_eq!(line("eventbus_retry_count_sum", &label), "1");
    }
}

thread_local! {
    /// The spans and lines of this thread, each as one text, while somebody listens.
    static SAID: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// One ear for the whole program: tests beside this one decide at once and for good which lines are of
/// interest.
struct Ear;

fn say(text: String) {
    SAID.with_borrow_mut(|said| said.as_mut().map(|said| said.push(text)));
}

/// Everything that is said on this thread during some work.
fn heard(work: impl FnOnce()) -> Vec<String> {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        tracing::subscriber::set_global_default(Ear).unwrap();
        tracing::callsite::rebuild_interest_cache();
    });
    SAID.set(Some(Vec::new()));
    work();
    SAID.take().unwrap_or_default()
}

struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tidegate_connector") || metadata.target().starts_with("it")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut words = Words(format!("span {}", span.metadata().name()));
        span.record(&mut words);
        say(words.0);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words("line".to_owned());
        event.record(&mut words);
        say(words.0);
    }

    fn enter(&self, _: &Id) {
        say("enter".to_owned());
    }

    fn exit(&self, _: &Id) {
        say("exit".to_owned());
    }
}

#[test]
fn o24_spans_and_lines_carry_trace_and_attempt() {
    let said = heard(|| {
        on_model(|scene: Scene| async move {
            play(scene).await;
        });
    });
    let spans: Vec<&String> = said
        .iter()
        .filter(|text| text.starts_with("span consumer.process"))
        .collect();
    assert_eq!(spans.len(), 7, "one per attempt: {spans:?}");
    let traced = format!("trace_id=\"{TRACE}\"");
    for span in &spans {
        assert!(
            span.contains(&traced) && span.contains("retry_attempt=1"),
            "{span}"
        );
    }
    assert!(spans.iter().any(|span| span.contains("retry_tier=4")));
    // Consumers and calls tell the container that they are of.
    for kind in ["span consumer ", "span consumer.process "] {
        for container in [
            "eventbus-loans",
            "eventbus-loans-retry-1",
            "eventbus-loans-retry-4",
        ] {
            let field = format!(" container=\"{container}\"");
            let mut own = said.iter().filter(|text| text.starts_with(kind));
            assert!(own.any(|text| text.contains(&field)), "{kind}{container}");
        }
    }
    // Lines of the handler are within the span.
    let at = said
        .iter()
        .position(|text| text.contains("handling"))
        .unwrap();
    assert_eq!(said[at - 1], "enter", "{:?}", &said[..=at]);
    let failed: Vec<&String> = said
        .iter()
        .filter(|text| text.contains("an attempt failed") || text.contains("given up on"))
        .collect();
    assert_eq!(failed.len(), 8, "{failed:?}");
    for line in failed {
        assert!(
            line.contains(TRACE) && line.contains("retry_attempt=1"),
            "{line}"
        );
    }
}
