//! A log without threads: its parts, stepped in the order that a test says.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_core::books::{Place, postings};
use tidegate_core::env::{Clock, Disk, OpenMode, Sleep};
use tidegate_core::{EventId, GroupName, Offset, Topic};
use tidegate_sim::SimDisk;

use crate::embedded::audit::{self, TopicAudit};
use crate::embedded::change::LogChange;
use crate::embedded::config::EmbeddedConfig;
use crate::embedded::files::journals;
use crate::embedded::manifest;
use crate::embedded::open::{OpenedLog, open};
use crate::embedded::pending::{encode, place, unplaced};
use crate::embedded::reader::SegmentReader;
use crate::embedded::secret::LogSecret;
use crate::error::LogError;
use crate::local::{CommitTicket, GroupOffset, Write};
use crate::port::{Append, Batch, Committed, Read, RecordPosition};
use crate::record::{Record, StoredRecord, TopicPartition};
use crate::topic::TopicConfig;

/// A clock that a test sets.
#[derive(Debug)]
pub(super) struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(std::future::pending())
    }
}

/// When tests begin.
pub(super) const NOW_MS: u64 = 1_790_000_000_000;

pub(super) const DIR: &str = "/log";

/// Small files, so that a short workload rolls them.
pub(super) fn small() -> EmbeddedConfig {
    EmbeddedConfig {
        cluster: "test".to_owned(),
        segment_size: 1_500,
        journal_size: 2_048,
        cache_size: 600,
        ..EmbeddedConfig::new(DIR)
    }
}

pub(super) struct Harness {
    pub(super) opened: OpenedLog,
    pub(super) clock: Arc<TestClock>,
    pub(super) reader: SegmentReader,
}

impl Harness {
    pub(super) fn open(disk: &SimDisk, config: EmbeddedConfig) -> Result<Self, LogError> {
        Self::open_at(disk, config, NOW_MS)
    }

    pub(super) fn open_at(
        disk: &SimDisk,
        config: EmbeddedConfig,
        now_ms: u64,
    ) -> Result<Self, LogError> {
        let clock = Arc::new(TestClock(AtomicU64::new(now_ms)));
        let as_disk: Arc<dyn Disk> = Arc::new(disk.clone());
        // A random number in production; here every life has its own.
        let write = disk.operations().wrapping_mul(0x9e37_79b9);
        let opened = open(as_disk, clock.clone(), config, write)?;
        let reader = SegmentReader::new(Arc::clone(&opened.context));
        Ok(Self {
            opened,
            clock,
            reader,
        })
    }

    pub(super) fn pass(&self, ms: u64) {
        self.clock.0.fetch_add(ms, Ordering::Relaxed);
    }

    pub(super) fn create(&mut self, name: &str, config: TopicConfig) -> Result<(), LogError> {
        self.create_in_journal(name, config)?;
        match self.opened.context.is_in_checkpoint(&topic(name)) {
            true => Ok(()),
            false => self.opened.maintenance.checkpoint(),
        }
    }

    /// As earlier versions did: the creation is in the journal alone.
    pub(super) fn create_in_journal(
        &mut self,
        name: &str,
        config: TopicConfig,
    ) -> Result<(), LogError> {
        self.opened.writer.create_topic(&topic(name), config)
    }

    /// Several writes that share a sync.
    pub(super) fn write_all(
        &mut self,
        writes: Vec<Write>,
    ) -> Result<Vec<Result<Vec<RecordPosition>, LogError>>, LogError> {
        let context = Arc::clone(&self.opened.context);
        let mut pendings = Vec::new();
        let mut placings = Vec::new();
        for write in &writes {
            let (pending, placing) = encode(
                write,
                &context.catalog(),
                &context.config,
                context.clock.now_ms(),
            )?;
            pendings.push(pending);
            placings.push(placing);
        }
        let answers = self.opened.writer.commit(pendings);
        let told = writes.into_iter().zip(placings).zip(answers);
        Ok(told
            .map(|((write, placing), answer)| {
                let mut positions = unplaced(write.appends, &placing);
                answer.map(|bases| {
                    place(&mut positions, &placing, &bases);
                    positions
                })
            })
            .collect())
    }

    pub(super) fn write(&mut self, write: Write) -> Result<Vec<RecordPosition>, LogError> {
        self.write_all(vec![write])?.remove(0)
    }

    pub(super) fn append(&mut self, appends: Vec<Append>) -> Result<Vec<RecordPosition>, LogError> {
        self.write(Write {
            appends,
            offsets: Vec::new(),
        })
    }

    /// Does what the maintenance thread does in its time.
    pub(super) fn keep(&mut self) -> Result<(), LogError> {
        self.apply_retention(false)?;
        let OpenedLog {
            maintenance,
            writer,
            context,
            ..
        } = &mut self.opened;
        if context.state().unflushed_bytes > context.config.cache_size {
            maintenance.fill(true)?;
        }
        if maintenance.is_checkpoint_due() {
            maintenance.checkpoint()?;
        }
        maintenance.make_spare()?;
        while let Some(change) = maintenance.retention(false)? {
            if !writer.remove(change)? {
                break;
            }
        }
        if let Some(change) = maintenance.compaction()? {
            writer.remove(change)?;
        }
        if !context.state().garbage.is_empty() {
            maintenance.checkpoint()?;
        }
        Ok(())
    }

    fn apply_retention(&mut self, is_full: bool) -> Result<(), LogError> {
        let OpenedLog {
            maintenance,
            writer,
            ..
        } = &mut self.opened;
        while let Some(change) = maintenance.retention(is_full)? {
            if !writer.remove(change)? {
                break;
            }
        }
        Ok(())
    }

    /// Does what the maintenance thread does on a disk without room.
    pub(super) fn make_room(&mut self) -> Result<(), LogError> {
        self.apply_retention(true)?;
        let maintenance = &mut self.opened.maintenance;
        maintenance.remove_now();
        maintenance.give_up_files();
        maintenance.checkpoint()
    }

    pub(super) fn delete_before(
        &mut self,
        at: &TopicPartition,
        offset: i64,
    ) -> Result<(), LogError> {
        let OpenedLog {
            maintenance,
            writer,
            ..
        } = &mut self.opened;
        if let Some(change) = maintenance.delete_before(at, offset)? {
            assert!(writer.remove(change)?);
        }
        Ok(())
    }

    pub(super) fn register(&mut self, group: &str, topics: Vec<u32>) -> Result<(), LogError> {
        let group = GroupName::new(group).unwrap();
        self.opened
            .writer
            .change(&[LogChange::Register { group, topics }])
    }

    /// A group begins behind all that these partitions hold.
    pub(super) fn skip(&mut self, group: &str, partitions: &[(u32, u32)]) -> Result<(), LogError> {
        let group = GroupName::new(group).unwrap();
        self.opened.writer.skip(&group, partitions)
    }

    pub(super) fn read(&mut self, at: &TopicPartition, from: i64) -> Result<Batch, LogError> {
        self.reader.read(&Read::new(at.clone(), Offset(from)))
    }

    /// All records of a partition that are there, in small batches.
    pub(super) fn all(&mut self, at: &TopicPartition) -> Result<Vec<StoredRecord>, LogError> {
        let mut from = self.start(at);
        let mut found = Vec::new();
        loop {
            let batch = self.reader.read(&Read {
                max_records: 3,
                ..Read::new(at.clone(), Offset(from))
            })?;
            if batch.records.is_empty() {
                return Ok(found);
            }
            from = batch.next.0;
            found.extend(batch.records);
        }
    }

    pub(super) fn start(&self, at: &TopicPartition) -> i64 {
        let state = self.opened.context.state();
        let (topic, partition) = state.find(at).unwrap();
        state.partition((topic, partition)).unwrap().start
    }

    pub(super) fn end(&self, at: &TopicPartition) -> i64 {
        let state = self.opened.context.state();
        let (topic, partition) = state.find(at).unwrap();
        state.partition((topic, partition)).unwrap().end
    }

    pub(super) fn audit(&self) -> Vec<TopicAudit> {
        audit::live(&self.opened.context).unwrap().topics
    }

    pub(super) fn assert_balanced(&self) {
        for audited in self.audit() {
            assert!(audited.books.is_balanced(), "{audited:?}");
            assert_eq!(audited.missing, [], "{audited:?}");
        }
    }
}

pub(super) fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

pub(super) fn at(name: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic(name), partition)
}

/// An id that was born at the beginning of tests.
pub(super) fn id(n: u64) -> EventId {
    let born = u128::from(NOW_MS + n % 7 * 60_000) << 80;
    EventId::from_u128(born | (7 << 76) | (0b10 << 62) | u128::from(n))
}

pub(super) fn append(name: &str, partition: i32, n: u64) -> Append {
    let record = Record::new(format!("value {n} {}", "x".repeat(40))).event_id(id(n));
    Append::new(topic(name), record.timestamp_ms(NOW_MS + n)).partition(partition)
}

/// A commit of a group that delivered what lies between.
pub(super) fn offset(
    group: &str,
    at: TopicPartition,
    next: i64,
    delivered: impl IntoIterator<Item = EventId>,
) -> GroupOffset {
    GroupOffset {
        group: GroupName::new(group).unwrap(),
        at,
        committed: Committed {
            next: Offset(next),
            metadata: format!("up to {next}"),
        },
        postings: postings(delivered, Some(Place::Queued), Some(Place::Delivered)),
        ticket: CommitTicket::default(),
    }
}

/// The secret of the log.
pub(super) fn secret(disk: &dyn Disk) -> LogSecret {
    manifest::read(disk, dir()).unwrap().unwrap().state.secret
}

/// The journal file with this number, which must be there.
pub(super) fn journal(disk: &SimDisk, number: u64) -> PathBuf {
    let names = journals(disk, dir()).unwrap();
    dir().join(&names[&number])
}

/// Flips a bit of the first place where a file holds these bytes.
pub(super) fn damage(disk: &SimDisk, file: &Path, bytes: &[u8]) {
    let content = (disk as &dyn Disk).read(file, 1 << 20).unwrap();
    let place = content.windows(bytes.len()).position(|w| w == bytes);
    disk.flip_bit(file, place.unwrap() as u64, 1);
}

/// Leaves nothing in the journal of what a checkpoint has: as after its files were used again.
pub(super) fn empty_journal(disk: &SimDisk) {
    let as_disk: &dyn Disk = disk;
    let end = manifest::read(as_disk, dir()).unwrap().unwrap();
    let end = end.state.journal;
    for (number, name) in journals(as_disk, dir()).unwrap() {
        let path = dir().join(name);
        let len = as_disk.read(&path, 1 << 24).unwrap().len() as u64;
        let used = if number < end.file { len } else { end.at };
        if number <= end.file {
            let mut file = as_disk.open(&path, OpenMode::Write).unwrap();
            file.write_at(0, &vec![0; used as usize]).unwrap();
        }
    }
}

pub(super) fn dir() -> &'static Path {
    Path::new(DIR)
}
