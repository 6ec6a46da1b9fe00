//! A hash table whose rows are in the order of their hashes.
//!
//! The first bits of a hash name its bucket, and a bucket is a short list in order. A table that grows splits each
//! bucket in two, which keeps the order.

use std::ops::ControlFlow;

use bytes::Bytes;

/// Rows per bucket before a table has twice as many buckets.
const LOAD: usize = 6;

/// A row.
#[derive(Debug)]
struct Row {
    hash: u32,
    key: Box<[u8]>,
    value: Bytes,
}

/// The rows of one table.
#[derive(Debug)]
pub(super) struct HashRows {
    /// How many of the first bits of a hash name a bucket.
    bits: u32,
    buckets: Vec<Vec<Row>>,
    rows: usize,
}

impl Default for HashRows {
    fn default() -> Self {
        Self {
            bits: 0,
            buckets: vec![Vec::new()],
            rows: 0,
        }
    }
}

/// Takes a hash, a key and a value, and says whether to go on.
type Visit<'v> = dyn FnMut(u32, &[u8], &Bytes) -> ControlFlow<()> + 'v;

impl HashRows {
    fn bucket_of(&self, hash: u32) -> usize {
        match self.bits {
            0 => 0,
            bits => (hash >> (32 - bits)) as usize,
        }
    }

    fn place(bucket: &[Row], hash: u32, key: &[u8]) -> Result<usize, usize> {
        // Short enough that looking at each is faster than halving.
        for (at, row) in bucket.iter().enumerate() {
            if row.hash < hash {
                continue;
            }
            match row.hash.cmp(&hash).then_with(|| row.key[..].cmp(key)) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(at),
                std::cmp::Ordering::Greater => return Err(at),
            }
        }
        Err(bucket.len())
    }

    pub(super) fn get(&self, hash: u32, key: &[u8]) -> Option<Bytes> {
        let bucket = self.buckets.get(self.bucket_of(hash))?;
        let at = Self::place(bucket, hash, key).ok()?;
        Some(bucket[at].value.clone())
    }

    /// Sets a value, and gives the one before it.
    pub(super) fn insert(&mut self, hash: u32, key: &[u8], value: Bytes) -> Option<Bytes> {
        let bucket = self.bucket_of(hash);
        let bucket = &mut self.buckets[bucket];
        match Self::place(bucket, hash, key) {
            Ok(at) => Some(std::mem::replace(&mut bucket[at].value, value)),
            Err(at) => {
                let key = key.into();
                bucket.insert(at, Row { hash, key, value });
                self.rows += 1;
                if self.rows > self.buckets.len() * LOAD && self.bits < 28 {
                    self.split();
                }
                None
            }
        }
    }

    pub(super) fn remove(&mut self, hash: u32, key: &[u8]) -> Option<Bytes> {
        let bucket = self.bucket_of(hash);
        let bucket = self.buckets.get_mut(bucket)?;
        let at = Self::place(bucket, hash, key).ok()?;
        self.rows -= 1;
        let row = bucket.remove(at);
        if bucket.is_empty() {
            *bucket = Vec::new();
        }
        Some(row.value)
    }

    /// Twice as many buckets.
    fn split(&mut self) {
        self.bits += 1;
        let shift = 32 - self.bits;
        let mut buckets = Vec::with_capacity(self.buckets.len() * 2);
        for mut bucket in std::mem::take(&mut self.buckets) {
            let middle = bucket.partition_point(|row| (row.hash >> shift) & 1 == 0);
            let mut second = bucket.split_off(middle);
            bucket.shrink_to_fit();
            second.shrink_to_fit();
            buckets.push(bucket);
            buckets.push(second);
        }
        self.buckets = buckets;
    }

    /// Visits the rows from a place on, in their order.
    pub(super) fn scan(&self, (hash, key): (u32, &[u8]), visit: &mut Visit<'_>) -> ControlFlow<()> {
        let first = self.bucket_of(hash);
        for (number, bucket) in self.buckets.iter().enumerate().skip(first) {
            let from = match number == first {
                true => Self::place(bucket, hash, key).unwrap_or_else(|at| at),
                false => 0,
            };
            for row in &bucket[from..] {
                visit(row.hash, &row.key, &row.value)?;
            }
        }
        ControlFlow::Continue(())
    }
}
