//! Queries over all events, one after the other on one connection.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ingest::{correlation, groups, trace, word};
use super::serve::ApiProcess;
use super::{HITS, line};
use crate::measure::percentile;
use crate::program::Why;

/// Queries of a kind that come before those that count.
const WARM_UP: usize = 20;
/// How long one with 1,000 hits may take, in milliseconds.
const LIMIT: f64 = 20.0;

/// A kind of query.
struct Kind {
    name: &'static str,
    /// How many of them count.
    queries: u64,
    /// The request for a group.
    request: fn(u64) -> (String, Option<Value>),
    /// The field of the answer that counts, and what it is with so many events.
    count: &'static str,
    expect: fn(u64) -> u64,
    unit: &'static str,
    /// The meaning of the limit beside the p50.
    limit_is: &'static str,
}

const WITH_HITS: &str = "the most that it may be with 1,000 hits";
const OVER_ALL: &str = "the limit of 1,000 hits; it reads an entry of each event";

const KINDS: [Kind; 6] = [
    Kind {
        name: "correlation",
        queries: 200,
        request: |group| {
            let path = format!("/v1/events/correlation/{}", correlation(group));
            (path, None)
        },
        count: "totalCount",
        expect: |events| HITS.min(events),
        unit: "ms, 1,000 hits",
        limit_is: WITH_HITS,
    },
    Kind {
        name: "trace",
        queries: 200,
        request: |group| (format!("/v1/events/trace/{}", trace(group)), None),
        count: "totalCount",
        expect: |events| HITS.min(events),
        unit: "ms, 1,000 hits",
        limit_is: WITH_HITS,
    },
    Kind {
        name: "text",
        queries: 200,
        request: |group| {
            let body = json!({"query": word(group), "processName": "CreateBooking"});
            ("/v1/events/search/text".to_owned(), Some(body))
        },
        count: "totalCount",
        expect: |events| HITS.min(events),
        unit: "ms, 1,000 hits",
        limit_is: WITH_HITS,
    },
    Kind {
        name: "traces-of-account",
        queries: 200,
        request: |group| (format!("/v1/traces?accountId=ACC-{group}"), None),
        count: "totalCount",
        expect: |_| 1,
        unit: "ms, a trace of 1,000 events",
        limit_is: WITH_HITS,
    },
    Kind {
        name: "traces",
        queries: 20,
        request: |_| ("/v1/traces?pageSize=100".to_owned(), None),
        count: "totalCount",
        expect: groups,
        unit: "ms, the first 100 of all traces",
        limit_is: OVER_ALL,
    },
    Kind {
        name: "stats",
        queries: 20,
        request: |_| ("/v1/dashboard/stats".to_owned(), None),
        count: "totalEvents",
        expect: |events| events,
        unit: "ms, over all events",
        limit_is: OVER_ALL,
    },
];

pub(super) fn run(database: &str, api: &ApiProcess, events: u64) -> Result<(), Why> {
    let failed = |error: std::io::Error| format!("the API: {error}");
    let mut connection = Connection::open(api).map_err(failed)?;
    for kind in KINDS {
        let (name, hits) = (kind.name, (kind.expect)(events));
        let mut samples = Vec::new();
        for number in 0..kind.queries + WARM_UP as u64 {
            // A prime steps through the groups in no order that a cache could know.
            let (path, body) = (kind.request)(number * 7_919 % groups(events));
            let began = Instant::now();
            let answer = connection.ask(&path, body.as_ref()).map_err(failed)?;
            let took = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
            samples.push(took);
            let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
            let found = answer.get(kind.count).and_then(Value::as_u64);
            if found != Some(hits) {
                return Err(format!(
                    "{path}: `{}` is {found:?}, and not {hits}",
                    kind.count
                ));
            }
        }
        let samples = samples.get_mut(WARM_UP..).unwrap_or_default();
        line(
            &format!("{database}-{name}-p50"),
            (percentile(samples, 0.5) / 1_000.0, LIMIT),
            (kind.unit, kind.limit_is),
            api.cost(),
        );
        line(
            &format!("{database}-{name}-p99"),
            (percentile(samples, 0.99) / 1_000.0, LIMIT),
            (kind.unit, "the limit of the p50"),
            api.cost(),
        );
    }
    Ok(())
}

/// A connection that is kept.
struct Connection {
    stream: BufReader<TcpStream>,
    host: String,
}

impl Connection {
    fn open(api: &ApiProcess) -> std::io::Result<Self> {
        let stream = TcpStream::connect(api.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self {
            stream: BufReader::new(stream),
            host: api.address.to_string(),
        })
    }

    /// The body of the answer, which must be a success.
    fn ask(&mut self, path: &str, body: Option<&Value>) -> std::io::Result<Vec<u8>> {
        let (method, body) = match body {
            Some(body) => ("POST", body.to_string()),
            None => ("GET", String::new()),
        };
        let (host, length) = (&self.host, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut status = String::new();
        self.stream.read_line(&mut status)?;
        if !status.starts_with("HTTP/1.1 200") {
            return Err(std::io::Error::other(format!("{path}: {status}")));
        }
        let mut length = 0;
        loop {
            let mut header = String::new();
            self.stream.read_line(&mut header)?;
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(text) = header.strip_prefix("content-length:") {
                length = text.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }
}
