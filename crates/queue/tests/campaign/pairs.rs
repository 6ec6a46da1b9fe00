//! Two processes side by side.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate_core::EventId;
use tidegate_core::env::Env;
use tidegate_queue::Queue;
use tidegate_queue::port::{ClaimRequest, HandlerFilter, LeaseId};
use tidegate_store::Store;
use tokio::runtime::Runtime;

use crate::child::{Lines, Process, Role, options};
use crate::events::Placed;
use crate::evidence;
use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server with an empty queue, and children to be.
struct Pair {
    runtime: Runtime,
    server: Server,
    store: Store,
    queue: Queue,
    lines: Lines,
}

impl Pair {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let server = Server::start();
        let env = Env::system();
        let (store, queue) = runtime.block_on(async {
            let url = server.url("parent");
            let store = Store::open(&options(&url), &env).await.unwrap();
            let queue = Queue::open(store.clone(), &env).await.unwrap();
            evidence::watch(&store).await;
            (store, queue)
        });
        Self {
            runtime,
            server,
            store,
            queue,
            lines: Lines::default(),
        }
    }

    fn start(&self, name: &str, handlers: &'static str, mood: &str, ahead: Duration) -> Process {
        let role = Role {
            name: name.to_owned(),
            handlers,
            mood: mood.to_owned(),
            lease: Duration::from_secs(60),
            ahead,
        };
        let process = Process::start(role, &self.server.url(name), &self.lines);
        self.wait("it is open", || {
            self.heard(|from, line| from == name && line == "open") > 0
        });
        process
    }

    fn register(&self, handlers: &[&str]) {
        let known = handlers
            .iter()
            .map(|id| ("placed".to_owned(), (*id).to_owned()));
        let known: Vec<(String, String)> = known.collect();
        let registered = self.queue.store().register(&known);
        self.runtime.block_on(registered).unwrap();
    }

    /// Publishes events that nothing follows from.
    fn publish(&self, count: u64) {
        self.runtime.block_on(async {
            for n in (0..count).map(|n| n * 3 + 1) {
                let n = if n % 53 == 52 { 1 } else { n };
                self.queue.publish(&Placed { n, key: None }).await.unwrap();
            }
        });
    }

    /// Claims one event, as a process that does nothing more.
    fn claim_one(&self) -> LeaseId {
        let request = ClaimRequest {
            owner: "dead".to_owned(),
            limit: 1,
            lease: Duration::from_secs(600),
            filter: HandlerFilter::All,
            reclaim_expired: false,
            include_delayed: false,
            include_poison: false,
            isolate: false,
        };
        let claimed = self.queue.store().claim(&request);
        let claimed = self.runtime.block_on(claimed).unwrap();
        claimed.events[0].claim.lease
    }

    /// Lets a claim run out soon.
    fn let_run_out(&self, held: LeaseId) {
        let renewed = [held];
        let renewed = self.queue.store().renew(&renewed, Duration::from_millis(1));
        assert_eq!(self.runtime.block_on(renewed).unwrap(), []);
    }

    fn heard(&self, is_it: impl Fn(&str, &str) -> bool) -> usize {
        let lines = self.lines.lock().unwrap();
        lines
            .iter()
            .filter(|(from, line)| is_it(from, line))
            .count()
    }

    fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            if begin.elapsed() > PATIENCE {
                let left = self.runtime.block_on(evidence::unfinished(&self.store));
                panic!("{what}, and did not become so: {left:#?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn finalized(&self) -> i64 {
        self.runtime.block_on(evidence::progress(&self.store)).1
    }

    /// How often each handler handled what, and in which processes.
    fn handled(&self) -> BTreeMap<(String, EventId), Vec<String>> {
        let mut handled: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for (from, line) in self.lines.lock().unwrap().iter() {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["handled", handler, id] = words[..] {
                let key = (handler.to_owned(), id.parse().unwrap());
                handled.entry(key).or_default().push(from.clone());
            }
        }
        handled
    }
}

mod needs_postgres {
    use super::*;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn two_processes_with_different_handlers_both_handle_every_event() {
        const EVENTS: u64 = 200;
        let pair = Pair::new();
        pair.register(&["one", "two"]);
        let first = pair.start("first", "one", "plain", Duration::ZERO);
        let second = pair.start("second", "two", "plain", Duration::ZERO);
        pair.publish(EVENTS);
        pair.wait("all is finalized", || pair.finalized() == EVENTS as i64);
        first.stop();
        second.stop();
        let handled = pair.handled();
        assert_eq!(handled.len() as u64, EVENTS * 2);
        for ((handler, id), by) in handled {
            let expected = if handler == "one" { "first" } else { "second" };
            assert_eq!(by, [expected], "{handler} of {id}");
        }
    }

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn q04_a_process_whose_clock_is_ahead_takes_no_live_claim() {
        const EVENTS: u64 = 12;
        let pair = Pair::new();
        pair.register(&["one"]);
        pair.publish(1);
        let dead = pair.claim_one();
        let held = pair.start("held", "one", "slow 300", Duration::ZERO);
        pair.publish(EVENTS);
        pair.wait("something is handled", || {
            pair.heard(|_, line| line.starts_with("handled")) > 0
        });
        // From now on nobody renews its lease of a minute, which is long over on the other's clock.
        held.pause();
        let ahead = pair.start("ahead", "one", "plain", Duration::from_secs(300));
        pair.publish(1);
        let by_ahead = || pair.heard(|from, line| from == "ahead" && line.starts_with("handled"));
        pair.wait("the other works", || by_ahead() == 1);
        // A claim that does run out: whoever takes it over has looked for such claims.
        pair.let_run_out(dead);
        pair.wait("the other looks for what ran out", || by_ahead() > 1);
        assert_eq!(by_ahead(), 2, "nothing else that is claimed");
        held.resume();
        pair.wait("all is finalized", || pair.finalized() == EVENTS as i64 + 2);
        held.stop();
        ahead.stop();
        assert_eq!(
            pair.heard(|_, line| line.starts_with("stale") && line != "stale 0"),
            0
        );
        for ((_, id), by) in pair.handled() {
            assert_eq!(by.len(), 1, "{id} was handled by {by:?}");
        }
    }
}
