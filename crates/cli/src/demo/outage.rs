//! The story of an outage: a service logs its events, the Event Log API goes away and comes back.
//!
//! All of it is real. The API is a process of its own with a database, the service answers HTTP requests,
//! and events wait in files. The demo waits for counters, with a limit; it sleeps only where a person watches.

mod api_process;
mod chart;
mod directory;
mod judge;
mod plan;
mod sample;
mod service;
mod stored;
mod verdict;

use std::error::Error;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::env::{Entropy, Env, Stream};
use tidegate_logger::{Logger, OnFull};

use self::api_process::{ApiProcess, DemoPorts};
use self::directory::DemoDirectory;
use self::sample::OutageCounters;
use self::service::DemoResort;
use self::verdict::OutagePhaseEnd;
use crate::report::ErrorReport;

pub(crate) use self::plan::OutagePlan;
pub(crate) use self::sample::{OutageFrame, OutageSample};
pub(crate) use self::verdict::OutageVerdict;

/// The phases of the documented demo.
const PHASES: [&str; 6] = ["setup", "normal", "outage", "recovery", "tight", "summary"];
/// Bookings in the outage, each of which logs five events.
const RUSH: usize = 15;
/// The least time between two samples.
const FRAME: Duration = Duration::from_millis(50);
/// How long the API may take to answer after its start.
const START_LIMIT: Duration = Duration::from_secs(20);
const STARTS: usize = 3;
/// How often the API is started again after somebody else ended it.
const RESTARTS: u32 = 5;
/// How long the loggers may take for what they do within a moment, on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
/// Guests who come at once to the service with the tight settings, and how often they come at most.
const CROWD: usize = 12;
const CROWDS: usize = 20;

/// A run of the demo. `show` gets every look at it.
pub(crate) struct OutageStory<F> {
    plan: OutagePlan,
    show: F,
    env: Env,
    began: Duration,
    phase: usize,
    phases: Vec<OutagePhaseEnd>,
    marks: Vec<(Duration, &'static str)>,
    samples: Vec<OutageSample>,
    is_api_up: bool,
    kills: u32,
    restarts: u32,
    client: reqwest::Client,
    url: String,
    /// Dropped in this order: the loggers use the API, and both use the directory.
    tight: Option<DemoResort>,
    resort: DemoResort,
    api: ApiProcess,
    dir: DemoDirectory,
}

impl OutageStory<()> {
    /// The name by which it is called.
    pub(crate) const NAME: &'static str = "outage";
}

impl<F: FnMut(&OutageFrame<'_>) -> Result<(), ErrorReport>> OutageStory<F> {
    /// Prepares everything. The API does not run yet.
    pub(crate) fn open(
        plan: OutagePlan,
        keep: Option<&Path>,
        show: F,
    ) -> Result<Self, ErrorReport> {
        let mut env = Env::system();
        let dir = DemoDirectory::open(keep, &*env.disk)?;
        let ports = DemoPorts::take(&mut *env.entropy)?;
        dir.write_config(ports.api, &*env.disk)?;
        let url = format!("http://127.0.0.1:{}", ports.api);
        let resort = DemoResort::start(&env, ports.resort, &url, dir.spill(), plan.logger())?;
        let client = client()?;
        let clock = Arc::clone(&env.clock);
        let (config, log) = (dir.config(), dir.api_log());
        Ok(Self {
            plan,
            show,
            began: env.clock.elapsed(),
            env,
            phase: 0,
            phases: Vec::new(),
            marks: Vec::new(),
            samples: Vec::new(),
            is_api_up: false,
            kills: 0,
            restarts: 0,
            tight: None,
            resort,
            api: ApiProcess::new(config, log, url.clone(), client.clone(), clock),
            client,
            url,
            dir,
        })
    }

    /// Plays the six phases.
    pub(crate) async fn tell(mut self) -> Result<OutageVerdict, ErrorReport> {
        self.begin();
        self.start_api().await?;
        self.resort.guest(&self.client).look_around().await?;
        self.end().await?;

        self.begin();
        self.serve_guests().await?;
        self.watch(LIMIT, OutageSample::is_at_rest).await?;
        self.end().await?;

        self.begin();
        self.stop_api().await?;
        self.rush().await?;
        let all_on_disk = |sample: &OutageSample| sample.is_breaker_open && sample.in_memory == 0;
        self.watch(LIMIT, all_on_disk).await?;
        self.pause(self.plan.away).await?;
        self.end().await?;

        self.begin();
        self.start_api().await?;
        self.kill_in_recovery().await?;
        self.drain().await?;
        self.end().await?;

        self.begin();
        self.crowd().await?;
        self.drain().await?;
        self.end().await?;

        self.begin();
        self.await_api().await?;
        self.judge().await
    }

    /// Guests book, check in, order and check out.
    async fn serve_guests(&mut self) -> Result<(), ErrorReport> {
        let guest = self.resort.guest(&self.client);
        for number in 1..=self.plan.guests {
            let case = format!("guest-{number}");
            let id = guest.book(&case).await?;
            self.pause(self.plan.pace).await?;
            guest.check_in(&id, &case).await?;
            self.pause(self.plan.pace).await?;
            guest.order(&id, &case).await?;
            self.pause(self.plan.pace).await?;
            guest.check_out(&id, &case).await?;
            self.pause(self.plan.pace).await?;
        }
        Ok(())
    }

    /// Many bookings while the API is down.
    async fn rush(&mut self) -> Result<(), ErrorReport> {
        let guest = self.resort.guest(&self.client);
        for number in 1..=RUSH {
            guest.book(&format!("outage-{number}")).await?;
            self.pause(self.plan.rush_pace).await?;
        }
        Ok(())
    }

    /// A second service with a short queue. Guests come in crowds until the queue was too short.
    async fn crowd(&mut self) -> Result<(), ErrorReport> {
        let listener = TcpListener::bind("127.0.0.1:0");
        let listener = listener.map_err(|error| failed("no free port was found", &error))?;
        let settings = self.plan.logger().queue_capacity(10);
        // With so little room, a full disk queue would lose events; the guests rather wait.
        let settings = settings.circuit_breaker_threshold(2).on_full(OnFull::Block);
        let spill = self.dir.tight_spill();
        let tight = DemoResort::start(&self.env, listener, &self.url, spill, settings)?;
        let guest = tight.guest(&self.client);
        let tight = self.tight.insert(tight).logger().clone();
        for crowd in 1..=CROWDS {
            let booking = (1..=CROWD).map(|number| {
                let (guest, case) = (guest.clone(), format!("tight-{crowd}-{number}"));
                let (done, booked) = tokio::sync::oneshot::channel();
                let task = async move {
                    done.send(guest.book(&case).await.map(drop)).ok();
                };
                drop(self.env.spawn.spawn("guest", Box::pin(task)));
                booked
            });
            for booked in booking.collect::<Vec<_>>() {
                let gone = |_| ErrorReport::new("demo.failed", "a guest never came back");
                booked.await.map_err(gone)??;
            }
            self.look()?;
            if tight.metrics().events_spilled > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Waits until every event is delivered and the spill files are gone.
    async fn drain(&mut self) -> Result<(), ErrorReport> {
        self.watch(self.plan.drain_limit(), OutageSample::is_at_rest)
            .await?;
        let end = self.env.clock.elapsed() + LIMIT;
        while self.files_left() > 0 && self.env.clock.elapsed() < end {
            self.pause(FRAME).await?;
        }
        Ok(())
    }

    /// Files in which events wait.
    fn files_left(&self) -> usize {
        let dirs = [Some(&self.resort), self.tight.as_ref()];
        let files = dirs.into_iter().flatten().map(|resort| {
            let entries = self.env.disk.list(&resort.spill).unwrap_or_default();
            let is_left = |name: &str| name.ends_with(".jsonl") || name.ends_with(".cursor");
            entries.iter().filter(|entry| is_left(&entry.name)).count()
        });
        files.sum()
    }

    async fn start_api(&mut self) -> Result<(), ErrorReport> {
        self.api.spawn()?;
        self.await_api().await
    }

    /// Waits until the API answers. One that ended is started again.
    async fn await_api(&mut self) -> Result<(), ErrorReport> {
        let mut starts = 1;
        let end = self.env.clock.elapsed() + START_LIMIT;
        while !self.api.is_ready().await {
            let has_ended = self.api.has_ended();
            if self.env.clock.elapsed() > end || (has_ended && starts == STARTS) {
                return Err(self.api.not_running(&*self.env.disk));
            }
            if has_ended {
                starts += 1;
                self.api.spawn()?;
            }
            self.pause(FRAME).await?;
        }
        self.is_api_up = true;
        self.look()
    }

    /// Starts the API again where somebody else ended it. The loggers find out by themselves that it is back.
    fn keep_api_up(&mut self) -> Result<(), ErrorReport> {
        if !self.is_api_up || !self.api.has_ended() {
            return Ok(());
        }
        if self.restarts == RESTARTS {
            return Err(self.api.not_running(&*self.env.disk));
        }
        self.restarts += 1;
        self.api.spawn()
    }

    /// Stops the API as an operator would, or kills it.
    async fn stop_api(&mut self) -> Result<(), ErrorReport> {
        self.is_api_up = false;
        self.look()?;
        match self.plan.kill {
            None => self.api.stop().await,
            Some(_) => self.kill_api(),
        }
        self.look()
    }

    fn kill_api(&mut self) {
        self.api.kill();
        self.kills += 1;
    }

    /// Kills the API at some moment before the replay must be over, and starts it again.
    async fn kill_in_recovery(&mut self) -> Result<(), ErrorReport> {
        let Some(seed) = self.plan.kill else {
            return Ok(());
        };
        let window = self.plan.breaker_reset + self.plan.replay_interval;
        let moment = window.mul_f64((&mut Stream::new(seed) as &mut dyn Entropy).unit());
        self.pause(moment).await?;
        self.is_api_up = false;
        self.kill_api();
        self.start_api().await
    }

    fn begin(&mut self) {
        let name = PHASES[self.phase.min(PHASES.len() - 1)];
        self.marks.push((self.now(), name));
    }

    async fn end(&mut self) -> Result<(), ErrorReport> {
        self.pause(self.plan.rest).await?;
        self.note_end();
        self.phase += 1;
        Ok(())
    }

    fn note_end(&mut self) {
        let loggers = match &self.tight {
            None => vec![self.resort.logger()],
            Some(tight) if self.phase + 1 < PHASES.len() => vec![tight.logger()],
            Some(tight) => vec![self.resort.logger(), tight.logger()],
        };
        let mut counters = OutageCounters::default();
        for logger in &loggers {
            counters.add(&logger.metrics());
        }
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (began, name) = self.marks.last().copied().unwrap_or_default();
        let is_open = |logger: &&Logger| logger.metrics().is_circuit_open;
        self.phases.push(OutagePhaseEnd {
            name,
            began_at_ms: ms(began),
            ended_at_ms: ms(self.now()),
            breaker: if loggers.iter().any(is_open) {
                "OPEN"
            } else {
                "CLOSED"
            },
            counters,
            account: loggers
                .first()
                .map(|logger| logger.account())
                .unwrap_or_default(),
        });
    }

    fn now(&self) -> Duration {
        self.env.clock.elapsed().saturating_sub(self.began)
    }

    /// Takes a sample and shows it.
    fn look(&mut self) -> Result<(), ErrorReport> {
        let mut sample = OutageSample {
            at: self.now(),
            is_api_up: self.is_api_up,
            ..OutageSample::default()
        };
        sample.add(self.resort.logger());
        if let Some(tight) = &self.tight {
            sample.add(tight.logger());
        }
        self.samples.push(sample);
        let Some(sample) = self.samples.last() else {
            return Ok(());
        };
        (self.show)(&OutageFrame {
            phase: PHASES[self.phase.min(PHASES.len() - 1)],
            number: self.phase + 1,
            phases: PHASES.len(),
            sample,
            traffic: sample::traffic(&self.samples),
            replay_rate: sample::replay_rate(&self.samples),
        })
    }

    /// Looks until something holds, at most for `limit`. The verdict says so if it never did.
    async fn watch(
        &mut self,
        limit: Duration,
        until: impl Fn(&OutageSample) -> bool,
    ) -> Result<(), ErrorReport> {
        let end = self.env.clock.elapsed() + limit;
        loop {
            self.keep_api_up()?;
            self.look()?;
            let rest = end.saturating_sub(self.env.clock.elapsed());
            if rest.is_zero() || self.samples.last().is_some_and(&until) {
                return Ok(());
            }
            self.env.clock.sleep(rest.min(FRAME)).await;
        }
    }

    /// Lets time pass, for a person who watches.
    async fn pause(&mut self, time: Duration) -> Result<(), ErrorReport> {
        self.watch(time, |_| false).await
    }
}

fn client() -> Result<reqwest::Client, ErrorReport> {
    // All of it is plain HTTP on this machine, which may have no certificates.
    let client = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .timeout(LIMIT)
        .build();
    client.map_err(|error| failed("cannot start the HTTP client", &error))
}

fn failed(doing: &str, error: &dyn Error) -> ErrorReport {
    ErrorReport::of("demo.failed", doing, error)
}
