//! Our side, with the commands of `bench/peers/README.md`: this program, called again.
//!
//! Two commands are ours alone. `hang` claims, begins to handle and never ends; it answers
//! `{"ready"}` once a handler has begun. `poll N` lets N claimers poll and finalize until nothing
//! is left, and answers `{"handled","busy"}`. And `drain 0` ends when nothing is left.

mod handle;
mod poll;
mod publish;

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tidegate_core::env::Env;
use tidegate_queue::Queue;
use tidegate_store::{Store, StoreOptions};

use crate::program::{Program, Why};

/// The argument that makes this program one of those that are measured.
pub(crate) const CHILD: &str = "--queue";

/// How long a claim holds; what is abandoned waits for so long.
pub(super) const LEASE: Duration = Duration::from_secs(5);

const TYPE: &str = "Measured";
const PAUSE: Duration = Duration::from_millis(5);

pub(super) fn program() -> Result<Program, Why> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(Program {
        name: "tidegate",
        command: vec![this.into_os_string(), OsString::from(CHILD)],
    })
}

/// Carries out one command.
pub(crate) fn run_child(arguments: &[String]) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime can be had");
    runtime.block_on(carry_out(arguments));
}

async fn carry_out(arguments: &[String]) {
    let env = Env::system();
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL is set");
    let store = Store::open(&StoreOptions::new(url), &env).await;
    let store = store.expect("the database answers");
    let queue = Queue::open(store, &env).await;
    let queue = queue.expect("the tables are made");
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        // Opening the queue makes its tables.
        ["prepare"] => answer(&json!({"is": format!("Tidegate: batches of {}", handle::BATCH)})),
        ["publish", count] => publish::all(&queue, parsed(count)).await,
        ["publish-at", rate, seconds, file] => {
            publish::at_a_rate(&queue, parsed(rate), parsed(seconds), file).await;
        }
        ["drain", count] => handle::drain(queue, &env, parsed(count), None).await,
        ["drain", count, file] => handle::drain(queue, &env, parsed(count), Some(file)).await,
        ["hang"] => handle::hang(queue, &env).await,
        ["poll", claimers] => poll::until_empty(queue, parsed(claimers)).await,
        other => panic!("there is no command {other:?}"),
    }
}

fn parsed(number: &str) -> u32 {
    number.parse().expect("a number")
}

fn answer(value: &Value) {
    println!("{value}");
}

/// Microseconds since 1970.
fn micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

/// JSON of 200 bytes.
pub(super) fn payload(number: u32) -> String {
    const BYTES: usize = 200;
    let frame = format!(r#"{{"number":{number},"text":""}}"#).len();
    format!(
        r#"{{"number":{number},"text":"{}"}}"#,
        "x".repeat(BYTES - frame)
    )
}
