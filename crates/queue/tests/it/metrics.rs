//! The metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use tidegate_core::{Code, Failure};
use tidegate_queue::model::QueueModel;
use tidegate_queue::port::QueueStore;
use tidegate_queue::{Dispatcher, DispatcherOptions, Handled, NewEvent, Queue, Unhandled};
use tidegate_sim::Sim;

/// Two events of a type with a handler, of which one is tried twice, and one that nobody wants.
fn work() {
    let mut sim = Sim::new(1);
    let (database, worker) = (sim.node("database"), sim.node("worker"));
    let model = QueueModel::new(database.env().clock);
    let mut options = DispatcherOptions::default();
    options.policy.unhandled = Unhandled::Complete;
    let env = worker.env();
    let queue = Queue::on(Arc::new(model.clone()), &env);
    let dispatcher = Dispatcher::builder(queue.clone()).options(options);
    let calls = AtomicU32::new(0);
    let dispatcher = dispatcher.register_raw("one", "a", move |event, _| {
        let is_early = event.payload() == "1" && calls.fetch_add(1, Ordering::Relaxed) == 0;
        Box::pin(async move {
            if is_early {
                let code = Code::from_static("test.broken");
                return Failure::transient(code, "not yet").into();
            }
            Handled::Success
        })
    });
    let run = dispatcher.unwrap().build(&env).run(std::future::pending());
    let run = async move {
        run.await;
    };
    drop(worker.start("dispatcher", run));
    sim.block_on(&database, async move {
        let event = |type_name: &str, payload: &str| {
            NewEvent::raw(queue.ids().mint(), type_name, payload).unwrap()
        };
        let events = [event("a", "1"), event("a", "2"), event("nobody", "3")];
        queue.publish_all(&events).await.unwrap();
    });
    // Past a clean-up, which sets the gauges.
    sim.run_for(Duration::from_secs(90));
    let finalized = sim.block_on(&database, async move { model.stats().await });
    assert_eq!(finalized.unwrap().finalized, 3);
}

#[test]
fn q14_q22_results_retries_and_events_nobody_wants_are_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, work);
    let text = handle.render();
    let results = |result: &str| {
        format!(
            "event_queue_results_total{{component=\"queue\",type=\"a\",handler=\"one\",\
             result=\"{result}\"}}"
        )
    };
    for line in [
        format!("{} 2", results("SUCCESS")),
        format!("{} 1", results("TRANSIENT_ERROR")),
        "event_queue_unhandled_total{component=\"queue\",type=\"nobody\"} 1".to_owned(),
        "event_queue_attempts_count{component=\"queue\"} 3".to_owned(),
        "event_queue_pickup_seconds_count{component=\"queue\"} 3".to_owned(),
        "event_queue_depth{component=\"queue\",status=\"PENDING\"} 0".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}
