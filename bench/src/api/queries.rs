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

/// Queries of each kind, of which the first few warm up.
const QUERIES: u64 = 220;
const WARM_UP: usize = 20;
/// How long one may take, in milliseconds.
const LIMIT: f64 = 20.0;

/// A kind of query: its name, and the request for a group.
type Kind = (&'static str, fn(u64) -> (String, Option<Value>));

const KINDS: [Kind; 3] = [
    ("correlation", |group| {
        let path = format!("/v1/events/correlation/{}", correlation(group));
        (path, None)
    }),
    ("trace", |group| {
        (format!("/v1/events/trace/{}", trace(group)), None)
    }),
    ("text", |group| {
        let body = json!({"query": word(group), "processName": "CreateBooking"});
        ("/v1/events/search/text".to_owned(), Some(body))
    }),
];

pub(super) fn run(database: &str, api: &ApiProcess, events: u64) -> Result<(), Why> {
    let failed = |error: std::io::Error| format!("the API: {error}");
    let mut connection = Connection::open(api).map_err(failed)?;
    let hits = HITS.min(events);
    for (name, request) in KINDS {
        let mut samples = Vec::new();
        for number in 0..QUERIES {
            // A prime steps through the groups in no order that a cache could know.
            let (path, body) = request(number * 7_919 % groups(events));
            let began = Instant::now();
            let answer = connection.ask(&path, body.as_ref()).map_err(failed)?;
            let took = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
            samples.push(took);
            let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
            let found = answer.get("totalCount").and_then(Value::as_u64);
            if found != Some(hits) {
                return Err(format!("{path}: {found:?} events, and not {hits}"));
            }
        }
        let samples = samples.get_mut(WARM_UP..).unwrap_or_default();
        line(
            &format!("{database}-{name}-p50"),
            (percentile(samples, 0.5) / 1_000.0, LIMIT),
            ("ms, 1,000 hits", "the most it may be"),
            api.cost(),
        );
        line(
            &format!("{database}-{name}-p99"),
            (percentile(samples, 0.99) / 1_000.0, LIMIT),
            ("ms, 1,000 hits", "the most that the p50 may be"),
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
