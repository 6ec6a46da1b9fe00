//! Numbers that come late, and those that never come.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::env::Env;
use tidegate_queue::conformance::{LONG, World, numbers};
use tidegate_queue::{Tx, sql};
use tidegate_store::sqlx;
use tidegate_store::{Store, StoreTx};

use crate::stores::{drop_schema, postgres, run, runtime};

/// Events of which every second number was given out and never used.
const BROKEN: &str = "INSERT INTO tidegate_event (event_id, type, payload)
    SELECT tidegate_new_event_id(), 'a', '{}' FROM generate_series(1, 20000) n
    WHERE nextval('tidegate_event_id') > 0";

async fn world(store: &Store) -> World {
    let queue = sql::queue_store(store.clone(), &Env::system()).await;
    World::new(queue.unwrap())
}

async fn number(store: &Store, sql: &'static str) -> i64 {
    let Store::Postgres(postgres) = store else {
        panic!("only for PostgreSQL");
    };
    let call = postgres.run("ask", move |connection| {
        Box::pin(async move { sqlx::query_scalar(sql).fetch_one(connection).await })
    });
    call.await.unwrap()
}

/// The cost of a bare claim: how often it looked for events by the index, and whether it took a
/// transaction id, which a lock and a write need.
async fn cost_of_a_claim(store: &Store) -> (i64, bool) {
    let mut tx = store.begin().await.unwrap();
    let StoreTx::Postgres(postgres) = &mut tx else {
        panic!("only for PostgreSQL");
    };
    let looks = "SELECT coalesce(sum(idx_scan), 0)::int8 FROM pg_stat_xact_user_tables
                 WHERE relname = 'tidegate_event' AND schemaname = current_schema()";
    let connection = postgres.connection();
    let before: i64 = sqlx::query_scalar(looks)
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    sqlx::raw_sql("SELECT tidegate_claim(100, 'tester', 60000)")
        .execute(&mut *connection)
        .await
        .unwrap();
    let after: i64 = sqlx::query_scalar(looks)
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    let has_id: bool = sqlx::query_scalar("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
        .fetch_one(connection)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    (after - before, has_id)
}

/// A small random number; the steps must differ from run to run of the loop, not of the test.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

mod needs_postgres {
    use super::*;

    #[test]
    #[ignore = "needs PostgreSQL"]
    fn an_old_writer_with_many_gaps_costs_idle_claims_nothing() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let world = world(&store).await;
            let mut old = world.store.begin().await.unwrap();
            let first = [world.event("a")];
            let mut late = world.store.publish_in(&mut old, &first).await.unwrap();
            run(&store, BROKEN.to_owned()).await;
            let mut claimed = 0;
            while claimed < 20_000 {
                claimed += world.claim(5_000, LONG).await.len();
            }
            // The gaps get their horizons, are looked into, and are known by whom they wait for.
            let mut looks = Vec::new();
            let mut idle = None;
            for _ in 0..600 {
                let (cost, has_id) = cost_of_a_claim(&store).await;
                looks.push(cost);
                if cost < 10 && !has_id {
                    idle = Some(looks.len());
                    break;
                }
                // Other tests on this server have transactions of their own.
                world.wait(Duration::from_millis(20)).await;
            }
            assert!(idle.is_some(), "{looks:?}");
            assert!(looks.iter().all(|cost| *cost < 6_000), "{looks:?}");
            let gaps = number(&store, "SELECT count(*) FROM tidegate_gap").await;
            assert!(gaps >= 20_000, "{gaps}");
            let stretches = number(&store, "SELECT count(*) FROM tidegate_gap_look").await;
            assert!(stretches < 10, "{stretches}");
            // The old writer goes on: what it has published is found, and all gaps are forgotten.
            let more = [world.event("a")];
            late.extend(world.store.publish_in(&mut old, &more).await.unwrap());
            old.commit().await.unwrap();
            let mut found = Vec::new();
            for _ in 0..600 {
                found.extend(numbers(&world.claim(100, LONG).await));
                if number(&store, "SELECT count(*) FROM tidegate_gap").await == 0 {
                    break;
                }
                world.wait(Duration::from_millis(20)).await;
            }
            found.sort_unstable();
            assert_eq!(found, late);
            assert_eq!(number(&store, "SELECT count(*) FROM tidegate_gap").await, 0);
            drop_schema(&store, &schema).await;
        });
    }

    /// A lease that no run of this test outlasts, with its full count on a busy machine.
    const PAST_THE_TEST: Duration = Duration::from_secs(3_600);

    /// Transactions that begin, publish and end in any order, beside claims of any size.
    #[test]
    #[ignore = "needs PostgreSQL"]
    fn whatever_commits_is_claimed_once_however_late() {
        runtime().block_on(async {
            let (store, schema) = postgres().await;
            let world = world(&store).await;
            let mut dice = Dice(0x2545_f491_4f6c_dd1d);
            let mut open: Vec<(Tx, Vec<i64>)> = Vec::new();
            let mut claims: BTreeMap<i64, u32> = BTreeMap::new();
            let mut committed = Vec::new();
            let steps = if tidegate_sim::is_long() { 20_000 } else { 600 };
            for _ in 0..steps {
                match dice.below(10) {
                    0 | 1 if open.len() < 7 => {
                        let tx = world.store.begin().await.unwrap();
                        open.push((tx, Vec::new()));
                    }
                    2..=5 if !open.is_empty() => {
                        let at = dice.below(open.len() as u64) as usize;
                        let count = 1 + dice.below(3) as usize;
                        let events: Vec<_> = (0..count).map(|_| world.event("a")).collect();
                        let (tx, ids) = &mut open[at];
                        ids.extend(world.store.publish_in(tx, &events).await.unwrap());
                    }
                    6 if !open.is_empty() => {
                        // The oldest stays open for long.
                        let at = open.len() - 1 - dice.below(open.len() as u64) as usize / 2;
                        let (tx, ids) = open.swap_remove(at);
                        if dice.below(3) == 0 {
                            tx.rollback().await.unwrap();
                        } else {
                            tx.commit().await.unwrap();
                            committed.extend(ids);
                        }
                    }
                    _ => {
                        let limit = 1 + dice.below(6) as u32;
                        for id in numbers(&world.claim(limit, PAST_THE_TEST).await) {
                            *claims.entry(id).or_default() += 1;
                        }
                    }
                }
            }
            for (tx, ids) in open {
                tx.commit().await.unwrap();
                committed.extend(ids);
            }
            for _ in 0..600 {
                let claimed = world.claim(100, PAST_THE_TEST).await;
                for id in numbers(&claimed) {
                    *claims.entry(id).or_default() += 1;
                }
                let gaps = number(&store, "SELECT count(*) FROM tidegate_gap").await;
                if claimed.is_empty() && gaps == 0 {
                    break;
                }
                world.wait(Duration::from_millis(20)).await;
            }
            assert!(committed.len() > 100);
            let expected: BTreeMap<i64, u32> = committed.iter().map(|id| (*id, 1)).collect();
            assert_eq!(claims, expected);
            world.audit().await;
            drop_schema(&store, &schema).await;
        });
    }
}
