//! The campaign: processes are killed and stopped at random, and the server restarts twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_core::env::{Entropy, Env, Stream};
use tidegate_queue::{Queue, sql};
use tidegate_sim::is_long;
use tidegate_store::Store;
use tokio::runtime::Runtime;

use crate::child::{LEASE, Lines, Process, Role, options};
use crate::evidence;
use crate::publisher::{Obligations, Publisher};
use crate::server::{Server, Stop};
use crate::verdict::problems;

/// How long the rest may take once it is calm.
const PATIENCE: Duration = Duration::from_secs(120);

/// The faults of the processes.
#[derive(Debug, Default)]
struct Harm {
    lives: u64,
    kills: u64,
    stops: u64,
    long_stops: u64,
}

struct Campaign {
    server: Server,
    lines: Lines,
    processes: Vec<Process>,
    /// Until when each of them stands still.
    still: Vec<Option<Instant>>,
    random: Stream,
    seed: u64,
    harm: Harm,
}

impl Campaign {
    fn role(&mut self, slot: usize) -> Role {
        self.harm.lives += 1;
        Role {
            name: format!("p{slot}-{}", self.harm.lives),
            // One in four has a handler less, so that events are left to others.
            handlers: if slot % 4 == 3 { "two" } else { "one,two" },
            mood: format!("stormy {}", self.seed),
            lease: LEASE,
            ahead: Duration::ZERO,
        }
    }

    fn launch(&mut self, slot: usize) -> Process {
        let role = self.role(slot);
        let url = self.server.url(&role.name);
        Process::start(role, &url, &self.lines)
    }

    fn add_up_to(&mut self, count: usize) {
        while self.processes.len() < count {
            let process = self.launch(self.processes.len());
            self.processes.push(process);
            self.still.push(None);
        }
    }

    /// Kills and stops for `span`; the server restarts in the middle, if it is to.
    fn rage(&mut self, span: Duration, restart: Option<Stop>) {
        let begin = Instant::now();
        let mut restart = restart;
        while begin.elapsed() < span {
            let pause = 20 + self.below(200);
            std::thread::sleep(Duration::from_millis(pause));
            self.wake_up(Instant::now());
            if let Some(how) = restart
                && begin.elapsed() > span / 2
            {
                self.server.restart(how);
                restart = None;
            }
            let slot = usize::try_from(self.below(self.processes.len() as u64)).unwrap();
            if self.below(5) < 2 {
                let fresh = self.launch(slot);
                std::mem::replace(&mut self.processes[slot], fresh).kill();
                self.still[slot] = None;
                self.harm.kills += 1;
            } else {
                self.let_stand(slot);
            }
        }
        self.wake_up(Instant::now() + LEASE * 10);
    }

    /// Stops one; one in four for longer than its lease.
    fn let_stand(&mut self, slot: usize) {
        let lease = LEASE.as_millis() as u64;
        let is_long = self.below(4) == 0;
        let ms = if is_long {
            lease + self.below(lease)
        } else {
            self.below(lease / 2)
        };
        self.processes[slot].pause();
        self.still[slot] = Some(Instant::now() + Duration::from_millis(ms));
        self.harm.stops += 1;
        self.harm.long_stops += u64::from(is_long);
    }

    fn wake_up(&mut self, now: Instant) {
        for (process, still) in self.processes.iter().zip(&mut self.still) {
            if still.is_some_and(|until| until <= now) {
                process.resume();
                *still = None;
            }
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        let random: &mut dyn Entropy = &mut self.random;
        random.below(bound)
    }
}

fn seed() -> u64 {
    let given = std::env::var("TIDEGATE_SEED").ok();
    given.map_or(0x7469_6465, |text| text.parse().unwrap())
}

fn storm() {
    let seed = seed();
    println!("replay with TIDEGATE_SEED={seed}");
    let span = Duration::from_secs(if is_long() { 300 } else { 7 });
    let runtime = Runtime::new().unwrap();
    let server = Server::start();
    let env = Env::system();
    let url = server.url("parent");
    let store = runtime.block_on(Store::open(&options(&url), &env)).unwrap();
    let queue = runtime.block_on(async {
        sql::migrate(&store).await.unwrap();
        evidence::watch(&store).await;
        let queue = Queue::open(store.clone(), &env).await.unwrap();
        // Known from the first event on: one that registers later misses what was finalized before.
        let known = [("placed", "one"), ("placed", "two"), ("shipped", "shipped")];
        let known = known.map(|(kind, id)| (kind.to_owned(), id.to_owned()));
        queue.store().register(&known).await.unwrap();
        queue
    });
    let publisher = Publisher {
        queue: queue.clone(),
        obligations: Arc::default(),
        is_calm: Arc::new(AtomicBool::new(false)),
        next: Arc::new(AtomicU64::new(0)),
    };
    let publishers: Vec<_> = (0..2)
        .map(|number| runtime.spawn(publisher.clone().run(number, seed)))
        .collect();
    let mut campaign = Campaign {
        server,
        lines: Lines::default(),
        processes: Vec::new(),
        still: Vec::new(),
        random: Stream::new(seed).stream("storm"),
        seed,
        harm: Harm::default(),
    };
    for (count, restart) in [(2, None), (4, Some(Stop::Fast)), (8, Some(Stop::Immediate))] {
        campaign.add_up_to(count);
        campaign.rage(span / 3, restart);
    }
    // A slow machine takes longer for what is a proof.
    for _ in 0..60 {
        if publisher.obligations.lock().unwrap().are_enough() {
            break;
        }
        campaign.rage(span / 6, None);
    }
    publisher.is_calm.store(true, Ordering::Relaxed);
    for running in publishers {
        runtime.block_on(running).unwrap();
    }
    // Those that are alive finish the rest: whatever they forgot to let go of would stay.
    for process in &mut campaign.processes {
        process.calm();
    }
    let calm = Instant::now();
    runtime.block_on(drained(&store));
    let took = calm.elapsed();
    for process in campaign.processes.drain(..) {
        process.stop();
    }
    let obligations = publisher.obligations.lock().unwrap();
    judge(&runtime, &store, &queue, &obligations, &campaign, took);
}

/// Waits until everything is finalized and the read model has it.
async fn drained(store: &Store) {
    let begin = Instant::now();
    loop {
        let (published, finalized, position) = evidence::progress(store).await;
        if published == finalized && finalized == position {
            return;
        }
        if begin.elapsed() > PATIENCE {
            let left = evidence::unfinished(store).await;
            panic!("{published} published, {finalized} finalized, {position} read; {left:#?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn judge(
    runtime: &Runtime,
    store: &Store,
    queue: &Queue,
    obligations: &Obligations,
    campaign: &Campaign,
    took: Duration,
) {
    let lines = campaign.lines.lock().unwrap();
    let evidence = runtime.block_on(evidence::gather(store, obligations, &lines));
    let calls: u32 = evidence.handled.values().sum();
    println!(
        "{:?}: {} promised, {} rolled back, {} finalized, {calls} calls for {} results, {} ends \
         with a claim, calm after {took:?}",
        campaign.harm,
        evidence.promised.len(),
        evidence.taken_back.len(),
        evidence.log.len(),
        evidence.handled.len(),
        evidence.said.len(),
    );
    let wrong = problems(&evidence);
    assert!(
        wrong.is_empty(),
        "{} problems: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(20)]
    );
    assert!(obligations.are_enough(), "too little is no proof");
    runtime.block_on(async {
        let account = queue.account().await.unwrap();
        assert!(account.is_balanced(), "{account:?}");
        let recount = queue.store().recount().await.unwrap();
        assert!(recount.books.is_balanced(), "{:?}", recount.books);
        assert_eq!(recount.missing, []);
        let lost = &evidence.log[evidence.log.len() / 2];
        let delete = format!("DELETE FROM tidegate_log WHERE id = {}", lost.id);
        evidence::run(store, delete).await;
        let recount = queue.store().recount().await.unwrap();
        assert_eq!(recount.unaccounted(), 1);
        assert_eq!(recount.missing[0].id, Some(lost.event_id));
    });
}

mod needs_postgres {
    #[test]
    #[ignore = "needs PostgreSQL"]
    fn a08_processes_die_and_stand_still_while_the_server_restarts() {
        super::storm();
    }
}
