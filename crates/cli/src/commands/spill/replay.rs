//! `tidegate spill replay`: a logger that logs nothing and sends what its directory holds.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::books::{ComponentAccount, ComponentKind, Ledger};
use tidegate_core::env::{Clock, Env};
use tidegate_logger::spill::{SpillDirectory, SpillError};
use tidegate_logger::{
    Api, ApiAnswer, Authentication, EventOutcome, HttpApi, Logger, LoggerConfig, LoggerId,
    LoggerReport, Payload, Sending,
};
use tokio::sync::oneshot;

use super::{look, must_be_there, unreadable};
use crate::args::{Output, ReplayArgs};
use crate::confirm::confirm;
use crate::progress::{ProgressLine, ProgressUnit};
use crate::report::{ErrorReport, Exit, is_drawable, print_ledger, say};
use crate::table;

/// Failed requests in a row after which the API is down.
const FAILURES: i64 = 3;
/// The wait after a failed request.
const RETRY_MS: i64 = 1_000;
/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Looks between two lines of progress.
const LOOKS_PER_LINE: u64 = 20;

/// Why a replay ended.
enum Outcome {
    Drained,
    Failed(String),
    Interrupted,
}

pub(crate) async fn replay(arguments: &ReplayArgs, output: Output) -> Result<Exit, ErrorReport> {
    let dir = arguments.dir.as_path();
    must_be_there(dir)?;
    let waiting = look(dir)?.waiting();
    let env = Env::system();
    let api = Arc::new(Watched::new(http(arguments, &env)?));
    if waiting > 0 {
        confirmed(arguments, waiting)?;
    }
    let clock = Arc::clone(&env.clock);
    let config = LoggerConfig::builder()
        .spillover_path(dir)
        .replay_interval_ms(RETRY_MS)
        .circuit_breaker_threshold(FAILURES)
        .build()
        .map_err(|error| ErrorReport::of("internal", "cannot set the logger up", &error))?;
    let shared: Arc<dyn Api> = Arc::<Watched>::clone(&api);
    let (logger, task) =
        Logger::open(config, shared, env, None).map_err(|error| refused(dir, &error))?;
    let (stop, stopped) = oneshot::channel::<()>();
    let watching = async {
        let outcome = tokio::select! {
            biased;
            outcome = watch(&logger, dir, &*clock, &api) => outcome,
            _ = tokio::signal::ctrl_c() => Outcome::Interrupted,
        };
        // It may have ended by itself, which is what is asked of it.
        stop.send(()).ok();
        outcome
    };
    let running = task.run(async {
        stopped.await.ok();
    });
    let (ended, outcome) = tokio::join!(running, watching);
    print_books(dir, &ended, output)?;
    Ok(finish(&outcome, &ended))
}

/// Waits until nothing is left or the API is down, and says how far it is meanwhile.
async fn watch(logger: &Logger, dir: &Path, clock: &dyn Clock, api: &Watched) -> Outcome {
    let progress = ProgressLine::begin("spill replay", ProgressUnit::Events);
    let (mut told, mut most) = (None, 0);
    for looks in 0_u64.. {
        let left = logger.account().spilled;
        let is_time = looks.is_multiple_of(LOOKS_PER_LINE);
        if is_time && told != Some(left) && !is_drawable() {
            say(&format!("{left} events left"));
            told = Some(left);
        }
        most = left.max(most);
        let number = |count: i64| u64::try_from(count).unwrap_or(0);
        progress.counted().set(number(most - left), number(most));
        // The books may know events that are in no file any more, so the files are asked too.
        if (left == 0 || is_time) && is_drained(dir) {
            break;
        }
        if logger.metrics().is_circuit_open {
            return Outcome::Failed(api.last_failure());
        }
        clock.sleep(LOOK).await;
    }
    Outcome::Drained
}

/// Whether no line waits in any file. A directory that cannot be read now is asked again.
fn is_drained(dir: &Path) -> bool {
    look(dir).is_ok_and(|inspection| inspection.waiting() == 0)
}

fn http(arguments: &ReplayArgs, env: &Env) -> Result<HttpApi, ErrorReport> {
    let token = arguments.token.as_ref().filter(|token| !token.is_empty());
    let authentication = token.map_or_else(Authentication::none, |token| {
        Authentication::token(token.as_str())
    });
    HttpApi::builder(arguments.url.as_str())
        .authentication(authentication)
        .build(Arc::clone(&env.clock))
        .map_err(|error| {
            ErrorReport::of("api.invalid", "cannot send to `--url`", &error).with_exit(Exit::Usage)
        })
}

fn confirmed(arguments: &ReplayArgs, waiting: u64) -> Result<(), ErrorReport> {
    let url = tidegate_config::shown_address(&arguments.url);
    let events = table::counted(waiting, "event");
    let what = format!("{events} of `{}` go to {url}", arguments.dir.display());
    let message = format!("{what}, and nobody confirmed it: nothing was sent");
    let unconfirmed = ErrorReport::new("replay.unconfirmed", message).with_hint("give `--yes`");
    confirm(&what, arguments.yes, unconfirmed)
}

fn refused(dir: &Path, error: &SpillError) -> ErrorReport {
    if let SpillError::Locked { holder, .. } = error {
        let message = format!(
            "a logger is running on `{}` and replays it by itself: {holder}",
            dir.display()
        );
        return ErrorReport::new("spill.locked", message)
            .with_hint("stop that process first, or leave it to it; nothing was sent");
    }
    unreadable("cannot replay", dir, error)
}

fn print_books(dir: &Path, ended: &LoggerReport, output: Output) -> Result<Exit, ErrorReport> {
    let ledger = Ledger::new(vec![ComponentAccount {
        name: SpillDirectory::name_of(dir),
        kind: ComponentKind::Logger,
        account: ended.account.clone(),
    }]);
    print_ledger(&ledger, output)
}

/// Says how it ended. Standard output has its document already.
fn finish(outcome: &Outcome, ended: &LoggerReport) -> Exit {
    let left = ended.account.spilled;
    let sent = ended.metrics.events_replayed;
    let why = match outcome {
        Outcome::Drained => {
            say(&format!("{sent} events were delivered, none waits"));
            if left > 0 {
                say(&format!(
                    "the books know {left} more that are in no file; `tidegate audit` names them"
                ));
            }
            return Exit::Ok;
        }
        Outcome::Failed(why) => format!("the Event Log API failed: {why}"),
        Outcome::Interrupted => "interrupted".to_owned(),
    };
    say(&format!(
        "error[replay.stopped]: {why}\n{sent} events were delivered, {left} wait where they are"
    ));
    Exit::Failed
}

/// An API whose last failure is remembered, to be told when it was one too many.
#[derive(Debug)]
struct Watched {
    inner: HttpApi,
    failure: Mutex<String>,
}

impl Watched {
    fn new(inner: HttpApi) -> Self {
        Self {
            inner,
            failure: Mutex::default(),
        }
    }

    fn last_failure(&self) -> String {
        let failure = self.failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, answer: &ApiAnswer) {
        let why = match answer {
            ApiAnswer::Failed(failure) => Some(format!("{} ({})", failure.message, failure.code)),
            ApiAnswer::PerEvent(outcomes) => outcomes.iter().find_map(|outcome| match outcome {
                EventOutcome::Failed { code, message } => Some(format!("{message} ({code})")),
                EventOutcome::Stored | EventOutcome::Rejected { .. } => None,
            }),
            ApiAnswer::TooLarge => None,
        };
        if let Some(why) = why {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = why;
        }
    }
}

impl Api for Watched {
    fn send_from<'a>(&'a self, logger: Option<LoggerId>, batch: &'a [Payload]) -> Sending<'a> {
        Box::pin(async move {
            let answer = self.inner.send_from(logger, batch).await;
            self.note(&answer);
            answer
        })
    }
}
