use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tidegate_core::env::{Sleep, Stream};

use super::*;
use crate::event::{ProcessStatus, StepStatus};
use crate::trace_context::TraceContext;

/// Keeps every event it is given, and refuses those whose details say so.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn log(&self, event: Event) -> Result<(), Refused> {
        self.0.lock().unwrap().push(event.clone());
        match event.details.as_deref() {
            Some("refuse me") => Err(Refused::new(event, "full")),
            _ => Ok(()),
        }
    }
}

impl Recorder {
    fn last(&self) -> Event {
        self.0.lock().unwrap().last().unwrap().clone()
    }
}

/// A clock that goes on by 15 ms each time somebody looks.
#[derive(Debug, Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(15, Ordering::Relaxed))
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(std::future::ready(()))
    }
}

fn template() -> (Arc<Recorder>, ProcessTemplate) {
    let sink = Arc::new(Recorder::default());
    let entropy = Box::new(Stream::new(7));
    let template = ProcessTemplate::new(
        Arc::clone(&sink) as _,
        Arc::new(Ticking::default()),
        entropy,
    )
    .with_application_id("pet-resort-api")
    .with_originating_system("PET_RESORT")
    .with_target_system("PET_RESORT");
    (sink, template)
}

fn step(process: &mut ProcessLogger, details: &'static str) -> Result<(), Refused> {
    process.log_step(1, "S", StepStatus::Success, details, None)
}

/// Every one-shot field, so that a test cannot forget one.
fn set_one_shot(process: &mut ProcessLogger) {
    process
        .target_system("KENNEL")
        .endpoint("/kennels")
        .http_method("GET")
        .http_status_code(200)
        .request_payload(1)
        .response_payload("free")
        .execution_time_ms(12)
        .idempotency_key("k")
        .error_code("E")
        .error_message("m")
        .span_link("00f067aa0ba902b7".parse().unwrap());
}

fn one_shot_fields(event: &Event) -> Vec<bool> {
    let extras = event.extras();
    vec![
        event.target_system.as_deref() == Some("KENNEL"),
        extras.endpoint.is_some(),
        extras.http_method.is_some(),
        extras.http_status_code.is_some(),
        extras.request_payload.is_some(),
        extras.response_payload.is_some(),
        extras.execution_time_ms.is_some(),
        extras.idempotency_key.is_some(),
        extras.error_code.is_some(),
        extras.error_message.is_some(),
        extras.span_links.is_some(),
    ]
}

#[test]
fn p15_additive_context_stays_and_one_shot_context_is_for_exactly_the_next_event() {
    let (sink, template) = template();
    let mut process = template.for_process("CreateBooking");
    process.process_start("asked for").unwrap();
    assert_eq!(sink.last().extras().identifiers, None);

    process
        .add_identifier("bookingId", "BK-1")
        .add_metadata("nights", 3);
    set_one_shot(&mut process);
    let refused = step(&mut process, "refuse me").unwrap_err();
    assert_eq!(refused.reason, "full");
    assert_eq!(*refused.event, sink.last(), "the event is given back whole");
    assert_eq!(one_shot_fields(&sink.last()), [true; 11]);

    for round in 0..3 {
        match round {
            0 => step(&mut process, "went well").unwrap(),
            1 => process.error("E", "broke").unwrap(),
            _ => process
                .process_end(StepStatus::Success, "done", None)
                .unwrap(),
        }
        let event = sink.last();
        let extras = event.extras();
        let shown = one_shot_fields(&event);
        if round == 1 {
            assert_eq!(shown[8..10], [true; 2], "the error's own code and message");
            assert_eq!(shown[..8], [false; 8]);
        } else {
            assert_eq!(shown, [false; 11], "also after a refusal");
        }
        assert_eq!(event.target_system.as_deref(), Some("PET_RESORT"));
        let identifiers = extras.identifiers.as_ref().unwrap();
        assert_eq!(identifiers.get("bookingId").unwrap().as_str(), "\"BK-1\"");
        let metadata = extras.metadata.as_ref().unwrap();
        assert_eq!(metadata.get("nights").unwrap().as_str(), "3");
    }
}

#[test]
fn fixed_context_stands_on_every_event() {
    let (sink, template) = template();
    let mut process = template
        .for_process("CheckIn")
        .with_correlation_id("case-1")
        .with_account_id("OWN-001")
        .with_batch_id("nightly-7");
    process.process_start("a").unwrap();
    step(&mut process, "b").unwrap();
    process.error("E", "c").unwrap();
    process
        .process_end(StepStatus::Failure, "d", Some("NO_KENNEL"))
        .unwrap();

    let events = sink.0.lock().unwrap();
    let statuses: Vec<_> = events
        .iter()
        .map(|event| event.process_status.unwrap())
        .collect();
    use ProcessStatus::{Error, ProcessEnd, ProcessStart, Step};
    assert_eq!(statuses, [ProcessStart, Step, Error, ProcessEnd]);
    let places: Vec<_> = events
        .iter()
        .map(|event| event.extras().step_sequence)
        .collect();
    assert_eq!(places, [Some(0), Some(1), Some(2), Some(3)]);
    for event in &*events {
        assert_eq!(event.correlation_id.as_deref(), Some("case-1"));
        assert_eq!(event.application_id.as_deref(), Some("pet-resort-api"));
        assert_eq!(event.originating_system.as_deref(), Some("PET_RESORT"));
        assert_eq!(event.extras().account_id.as_deref(), Some("OWN-001"));
        assert_eq!(event.extras().batch_id.as_deref(), Some("nightly-7"));
        assert_eq!(event.validate(&Default::default()), []);
    }
}

#[test]
fn the_start_is_the_root_span_and_every_later_event_a_child_of_it() {
    let (sink, template) = template();
    let mut process = template.for_process("CheckIn");
    assert_eq!(process.root_span_id(), None);
    process.process_start("a").unwrap();
    let root = process.root_span_id().unwrap().to_string();
    step(&mut process, "b").unwrap();
    let step_span = process.last_span_id().unwrap();
    process.process_end(StepStatus::Success, "c", None).unwrap();

    let events = sink.0.lock().unwrap();
    let spans: Vec<&str> = events
        .iter()
        .map(|e| e.extras().span_id.as_deref().unwrap())
        .collect();
    let parents: Vec<_> = events
        .iter()
        .map(|e| e.extras().parent_span_id.as_deref())
        .collect();
    assert_eq!(spans[0], root);
    assert_eq!(spans[1], step_span.to_string());
    assert_ne!(spans[1], spans[2]);
    assert_eq!(parents, [None, Some(&*root), Some(&*root)]);
    let trace = process.trace_id().to_string();
    assert!(
        events
            .iter()
            .all(|e| e.extras().trace_id.as_deref() == Some(&trace))
    );
}

#[test]
fn two_runs_of_a_process_share_no_ids() {
    let (_, template) = template();
    let one = template.for_process("CheckIn");
    let two = template.clone().for_process("CheckIn");
    assert_ne!(one.trace_id(), two.trace_id());
    assert_ne!(one.correlation_id(), two.correlation_id());
}

#[test]
fn a_step_can_be_finished_on_the_span_it_was_begun_on() {
    let (_, template) = template();
    let mut process = template.for_process("CheckIn");
    process.process_start("a").unwrap();
    step(&mut process, "waiting").unwrap();
    let gate = process.last_span_id().unwrap();
    process.on_span(gate);
    step(&mut process, "approved").unwrap();
    assert_eq!(process.last_span_id(), Some(gate));
    step(&mut process, "next").unwrap();
    assert_ne!(process.last_span_id(), Some(gate));
}

#[test]
fn a_process_of_a_request_is_part_of_the_callers_span() {
    let (sink, template) = template();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let lookup = |name: &str| (name == "traceparent").then_some(parent.as_str());
    let context = TraceContext::from_headers(lookup, &mut Stream::new(1));
    let mut process = template.for_process("CheckIn").with_trace(&context);
    process.process_start("a").unwrap();
    assert_eq!(sink.last().extras().trace_id.as_deref(), Some(trace));
    assert_eq!(
        sink.last().extras().parent_span_id.as_deref(),
        Some("00f067aa0ba902b7")
    );
    assert_eq!(process.correlation_id(), context.correlation_id);
}

#[test]
fn an_awaited_process_starts_in_progress_and_ends_elsewhere_under_its_root() {
    let (sink, template) = template();
    let mut here = template.for_process("CheckIn").with_await_completion();
    here.process_start("approval asked for").unwrap();
    assert_eq!(sink.last().event_status, Some(StepStatus::InProgress));

    let mut there = template
        .for_process("CheckIn")
        .with_correlation_id(here.correlation_id().to_owned())
        .with_trace_id(here.trace_id())
        .with_root_span(here.root_span_id().unwrap());
    there
        .process_end(StepStatus::Success, "approved", None)
        .unwrap();
    let end = sink.last();
    let root = here.root_span_id().unwrap().to_string();
    assert_eq!(end.extras().parent_span_id.as_deref(), Some(&*root));
    assert_eq!(end.correlation_id.as_deref(), Some(here.correlation_id()));
}

#[test]
fn context_names_fill_the_fixed_context() {
    let (sink, template) = template();
    let lookup = |name: &str| match name {
        "account-id" => Some("OWN-002"),
        "batch_id" => Some("b"),
        "correlationId" => Some("case-9"),
        "trace_id" => Some("no trace"),
        _ => None,
    };
    let process = template.for_process("CheckIn");
    let trace = process.trace_id();
    let mut process = process.with_names(lookup);
    process.process_start("a").unwrap();
    let event = sink.last();
    assert_eq!(event.extras().account_id.as_deref(), Some("OWN-002"));
    assert_eq!(event.extras().batch_id.as_deref(), Some("b"));
    assert_eq!(event.correlation_id.as_deref(), Some("case-9"));
    assert_eq!(event.application_id.as_deref(), Some("pet-resort-api"));
    assert_eq!(process.trace_id(), trace);
}

#[tokio::test]
async fn a_call_is_one_step_with_its_duration_and_outcome() {
    let (sink, template) = template();
    let mut process = template.for_process("CheckIn");
    process.target_system("KENNEL");
    let called = process
        .call("KennelChecked", async { Ok::<_, fmt::Error>(7) })
        .await;
    called.logged.unwrap();
    assert_eq!(called.output, Ok(7));
    let event = sink.last();
    assert_eq!(event.process_status, Some(ProcessStatus::Step));
    assert_eq!(event.step.as_deref(), Some("KennelChecked"));
    assert_eq!(event.event_status, Some(StepStatus::Success));
    assert_eq!(event.target_system.as_deref(), Some("KENNEL"));
    assert_eq!(event.extras().execution_time_ms, Some(15));
    assert_eq!(event.extras().step_sequence, Some(1));

    let message = "ü".repeat(3000);
    let called = process.call_blocking("VetAsked", || Err::<(), _>(&message));
    called.logged.unwrap();
    assert!(called.output.is_err());
    let event = sink.last();
    assert_eq!(event.event_status, Some(StepStatus::Failure));
    assert_eq!(event.target_system.as_deref(), Some("PET_RESORT"));
    assert_eq!(
        event.details,
        Some(format!("VetAsked failed: {message}").into())
    );
    assert_eq!(event.validate(&Default::default()), []);
    assert_eq!(sink.0.lock().unwrap().len(), 2);
}
