//! The rules of the store of bindings, on all three stores.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_connector::parked::{
    GoneProgress, ParkLease, ParkedChanges, ParkedIn, ParkedModel, ParkedRow, ParkedStore,
    ProgressRow, migrate, parked_store,
};
use tidegate_core::books::Place;
use tidegate_core::env::Env;
use tidegate_core::env::system::system_entropy;
use tidegate_core::{EventId, Offset, TierIndex, Topic};
use tidegate_log::{Record, TopicPartition};
use tidegate_sim::Sim;
use tidegate_store::{Store, StoreOptions, sqlx};

const LONG: Duration = Duration::from_secs(60);

/// The schema of all tests on the server; their groups and topics differ.
const SCHEMA: &str = "connector_test";

/// A store in a file of this directory.
pub(crate) async fn sqlite(dir: &Path) -> Arc<dyn ParkedStore> {
    let url = format!("sqlite://{}", dir.join("connector.db").display());
    open(&StoreOptions::new(url)).await
}

/// A store on the server that the environment names.
pub(crate) async fn postgres() -> Arc<dyn ParkedStore> {
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL names the server");
    let mut options = StoreOptions::new(url);
    options.timeout = Duration::from_secs(30);
    let admin = Store::open(&options, &Env::system()).await.unwrap();
    if let Store::Postgres(admin) = &admin {
        let make = admin.run("make a schema", |connection| {
            let sql = sqlx::raw_sql("CREATE SCHEMA IF NOT EXISTS connector_test");
            Box::pin(async move { sql.execute(connection).await.map(drop) })
        });
        // Another test may be making it.
        make.await.ok();
    }
    options.schema = Some(SCHEMA.to_owned());
    open(&options).await
}

async fn open(options: &StoreOptions) -> Arc<dyn ParkedStore> {
    let env = Env::system();
    let store = Store::open(options, &env).await.unwrap();
    while migrate(&store).await.is_err() {}
    parked_store(store, &env)
}

struct StoreScene {
    store: Arc<dyn ParkedStore>,
    of: ParkedIn,
}

impl StoreScene {
    fn new(store: Arc<dyn ParkedStore>, run: u64) -> Self {
        let at = TopicPartition::new(Topic::new("orders").unwrap(), 3);
        let component = format!("g-{run:x}@orders");
        Self {
            store,
            of: ParkedIn { component, at },
        }
    }

    async fn lease(&self) -> ParkLease {
        let taken = self.store.acquire(&self.of, "one", LONG).await;
        taken.unwrap().expect("nobody has it")
    }

    async fn offsets(&self) -> Vec<i64> {
        let mut offsets: Vec<i64> = Vec::new();
        loop {
            let above = offsets.last().copied().unwrap_or(-1);
            let page = self.store.rows(&self.of, above).await.unwrap();
            if page.is_empty() {
                return offsets;
            }
            offsets.extend(page.iter().map(|row| row.offset.0));
        }
    }
}

fn row(offset: i64) -> ParkedRow {
    let mut record = Record::new("v").key("k").header("x", "y").timestamp_ms(5);
    record.headers.push("empty", None);
    record.headers.push("bytes", Some(b"\xff\x00"));
    ParkedRow {
        offset: Offset(offset),
        event_id: EventId::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + offset as u128),
        record,
        tier: TierIndex(2),
        delivery: 3,
        due_ms: 17,
        target: None,
    }
}

fn put(offsets: impl IntoIterator<Item = i64>) -> ParkedChanges {
    ParkedChanges {
        puts: offsets
            .into_iter()
            .map(|offset| (offset, row(offset)))
            .collect(),
        ..ParkedChanges::default()
    }
}

fn delivered(offsets: impl IntoIterator<Item = i64>) -> ParkedChanges {
    ParkedChanges {
        delivered: offsets.into_iter().collect(),
        ..ParkedChanges::default()
    }
}

async fn a_row_is_read_as_it_was_written(scene: StoreScene) {
    let lease = scene.lease().await;
    let mut tombstone = row(9);
    tombstone.record = Record::tombstone();
    tombstone.target = Some(Topic::new("orders.DLT").unwrap());
    let changes = ParkedChanges {
        puts: BTreeMap::from([(9, tombstone.clone()), (4, row(4))]),
        ..ParkedChanges::default()
    };
    assert!(scene.store.change(&lease, &changes).await.unwrap());
    let rows = scene.store.rows(&scene.of, -1).await.unwrap();
    assert_eq!(rows, [row(4), tombstone.clone()]);
    assert_eq!(scene.store.rows(&scene.of, 4).await.unwrap(), [tombstone]);
    let found = scene.store.find(&scene.of.component, row(4).event_id).await;
    assert_eq!(found.unwrap(), [(scene.of.at.clone(), row(4))]);
    // Written again, it is replaced.
    let mut later = row(4);
    later.delivery = 4;
    let changes = ParkedChanges {
        puts: BTreeMap::from([(4, later.clone())]),
        ..ParkedChanges::default()
    };
    assert!(scene.store.change(&lease, &changes).await.unwrap());
    assert_eq!(scene.store.rows(&scene.of, -1).await.unwrap()[0], later);
}

async fn a_change_that_is_made_again_changes_nothing(scene: StoreScene) {
    let lease = scene.lease().await;
    for _ in 0..2 {
        assert!(scene.store.change(&lease, &put([1, 2, 3])).await.unwrap());
    }
    let mut gone = delivered([1, 2]);
    gone.removed.insert(3);
    for _ in 0..2 {
        assert!(scene.store.change(&lease, &gone).await.unwrap());
    }
    let count = scene.store.count(&scene.of.component).await.unwrap();
    assert_eq!(count.rows, []);
    let account = count.books.account();
    assert_eq!((account.parked, account.delivered), (-2, 2));
    let sum = count.books.tallies(&Place::Delivered);
    let ids = row(1)
        .event_id
        .as_u128()
        .wrapping_add(row(2).event_id.as_u128());
    assert_eq!(
        sum.values()
            .map(|tally| tally.id_sum)
            .fold(0, u128::wrapping_add),
        ids
    );
    scene.store.fold(&scene.of.component).await.unwrap();
}

async fn only_the_newest_owner_changes_rows(scene: StoreScene) {
    let first = scene.lease().await;
    assert!(scene.store.change(&first, &put([1])).await.unwrap());
    let held = scene.store.acquire(&scene.of, "two", LONG).await.unwrap();
    assert_eq!(held, None, "it is held");
    scene.store.release(&first).await.unwrap();
    let mut second = None;
    while second.is_none() {
        second = scene.store.acquire(&scene.of, "two", LONG).await.unwrap();
    }
    let second = second.unwrap();
    assert!(second.token > first.token);
    assert!(!scene.store.change(&first, &delivered([1])).await.unwrap());
    assert!(!scene.store.change(&first, &put([2])).await.unwrap());
    assert!(!scene.store.renew(&first, LONG).await.unwrap());
    // Giving back what somebody else has changes nothing.
    scene.store.release(&first).await.unwrap();
    assert!(scene.store.renew(&second, LONG).await.unwrap());
    assert_eq!(scene.offsets().await, [1]);
    assert!(scene.store.change(&second, &delivered([1])).await.unwrap());
    assert!(scene.offsets().await.is_empty());
}

async fn partitions_and_bindings_are_apart(scene: StoreScene) {
    let lease = scene.lease().await;
    assert!(scene.store.change(&lease, &put(0..1_200)).await.unwrap());
    let mut other = scene.of.clone();
    other.at.partition.0 = 4;
    let beside = scene.store.acquire(&other, "one", LONG).await;
    let beside = beside.unwrap().unwrap();
    assert!(scene.store.change(&beside, &put([7])).await.unwrap());
    assert_eq!(scene.offsets().await, (0..1_200).collect::<Vec<i64>>());
    let count = scene.store.count(&scene.of.component).await.unwrap();
    assert_eq!(count.rows.len(), 1_201);
    let nobody = scene.store.count("nobody@orders").await.unwrap();
    assert_eq!(nobody.rows, []);
}

async fn progress_is_kept_until_nobody_names_it(scene: StoreScene) {
    let (store, of) = (&scene.store, &scene.of);
    let progress = |id, next| ProgressRow {
        id,
        next,
        lengths: vec![1, 2, 255, 0],
    };
    for (id, next) in [(11, 5), (12, 5), (13, 9)] {
        store.put_progress(of, &progress(id, next)).await.unwrap();
    }
    assert_eq!(store.progress(of, 12).await.unwrap(), Some(progress(12, 5)));
    // It is immutable.
    store.put_progress(of, &progress(12, 8)).await.unwrap();
    assert_eq!(store.progress(of, 12).await.unwrap(), Some(progress(12, 5)));
    let gone = |id, below, but| GoneProgress { id, below, but };
    store
        .drop_progress(of, gone(Some(11), 0, None))
        .await
        .unwrap();
    assert_eq!(store.progress(of, 11).await.unwrap(), None);
    store
        .drop_progress(of, gone(None, 9, Some(12)))
        .await
        .unwrap();
    assert_eq!(store.progress(of, 12).await.unwrap(), Some(progress(12, 5)));
    store
        .drop_progress(of, gone(None, 9, Some(13)))
        .await
        .unwrap();
    assert_eq!(store.progress(of, 12).await.unwrap(), None);
    assert_eq!(store.progress(of, 13).await.unwrap(), Some(progress(13, 9)));
}

fn on_model<R: Future<Output = ()> + Send + 'static>(rule: impl FnOnce(StoreScene) -> R) {
    let mut sim = Sim::new(3);
    let node = sim.node("one");
    let store = Arc::new(ParkedModel::new(&node.env()));
    sim.block_on(&node, rule(StoreScene::new(store, 0)));
}

fn on_sqlite<R: Future<Output = ()>>(rule: impl FnOnce(StoreScene) -> R) {
    let dir = tempfile::tempdir().unwrap();
    crate::scene::in_runtime(async {
        let store = sqlite(dir.path()).await;
        assert!(!store.is_shared(), "it is a file of this machine");
        rule(StoreScene::new(store, 0)).await;
    });
}

fn on_postgres<R: Future<Output = ()>>(rule: impl FnOnce(StoreScene) -> R) {
    let mut entropy = system_entropy();
    let run = tidegate_core::env::Entropy::next_u64(&mut entropy);
    crate::scene::in_runtime(async {
        let store = postgres().await;
        assert!(store.is_shared(), "other machines reach the server");
        rule(StoreScene::new(store, run)).await;
    });
}

macro_rules! rules {
    ($on:ident $(, #[$ignore:meta])?) => {
        rules!(@ $on, [$(#[$ignore])?],
            a_row_is_read_as_it_was_written,
            a_change_that_is_made_again_changes_nothing,
            only_the_newest_owner_changes_rows,
            partitions_and_bindings_are_apart,
            progress_is_kept_until_nobody_names_it,
        );
    };
    (@ $on:ident, $ignore:tt, $($rule:ident),* $(,)?) => {
        $(rules!(@one $on, $ignore, $rule);)*
    };
    (@one $on:ident, [$($ignore:tt)*], $rule:ident) => {
        #[test]
        $($ignore)*
        fn $rule() {
            super::$on(super::$rule);
        }
    };
}

mod model {
    rules!(on_model);
}

mod file {
    rules!(on_sqlite);
}

mod needs_postgres {
    rules!(on_postgres, #[ignore = "needs PostgreSQL"]);
}
