//! The embedded log: what durable appends cost beside a plain file, how fast partitions are read,
//! and how long a start takes after a crash.

mod append;
mod disk;
mod read;
mod start;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::env::{Entropy, Env, Stream};
use tidegate_core::{EventId, Topic};
use tidegate_log::local::{RecordStorage, Write};
use tidegate_log::{Append, EmbeddedConfig, EmbeddedStorage, Record, TopicConfig};

use disk::DiskCounts;

/// The size of a record, headers included.
const RECORD: usize = 200;
const MIB: usize = 1024 * 1024;

pub(crate) fn run() {
    append::run();
    read::run();
    start::run();
}

/// A directory on the disk that holds the build, which is a real one. It is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let dir = program.with_file_name("bench-log").join(name);
        // Files of an earlier run that was stopped half-way.
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).expect("the directory can be made");
        Self(dir)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A log on a real disk whose operations are counted.
struct Bench {
    storage: Arc<EmbeddedStorage>,
    disk: Arc<DiskCounts>,
}

impl Bench {
    fn open(dir: &Path) -> Self {
        let disk = Arc::new(DiskCounts::default());
        let mut env = Env::system();
        env.disk = disk.disk();
        let config = EmbeddedConfig {
            max_size: u64::MAX / 2,
            ..EmbeddedConfig::new(dir)
        };
        let storage = EmbeddedStorage::open(&env, config).expect("the log opens");
        Self {
            storage: Arc::new(storage),
            disk,
        }
    }

    /// Lets the maintenance thread do all that is left to be done.
    async fn rest(&self) {
        self.storage.tidy().await.expect("the log is tidied up");
    }

    async fn topic(&self, partitions: u32) {
        let topic = topic();
        let made = self
            .storage
            .create_topic(&topic, TopicConfig::new(partitions));
        made.await.expect("the topic is made");
    }
}

fn topic() -> Topic {
    Topic::new("bench").expect("a name")
}

/// Records as applications write them: a value, and the id of the event.
struct Records {
    random: Stream,
    topic: Topic,
}

impl Records {
    fn new() -> Self {
        Self {
            random: Stream::new(7),
            topic: topic(),
        }
    }

    fn append(&mut self, partition: i32) -> Append {
        let bits = (u128::from(self.random.next_u64()) << 64) | u128::from(self.random.next_u64());
        let born = 0x019a_8f3e_5c00_u128 << 80;
        let tail = bits & !(0xffff_ffff_ffff_u128 << 80) & !(0xf << 76) & !(0b11 << 62);
        let id = EventId::from_u128(born | (7 << 76) | (0b10 << 62) | tail);
        let record = Record::new(Vec::new()).event_id(id);
        let value = vec![b'x'; RECORD - record.size()];
        let record = Record {
            value: Some(value.into()),
            ..record
        };
        Append::new(self.topic.clone(), record).partition(partition)
    }

    fn write(&mut self, count: usize, partition: i32) -> Write {
        Write {
            appends: (0..count).map(|_| self.append(partition)).collect(),
            offsets: Vec::new(),
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(future)
}
