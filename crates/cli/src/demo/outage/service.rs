//! The service of the demo: the example `pet-resort` with its logger, and the guests who call it.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pet_resort::{Pace, Resort, router, serve};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tidegate_core::env::{Env, Task};
use tidegate_logger::{
    Defaults, Event, EventSink, HttpApi, Logger, LoggerConfig, LoggerConfigBuilder, LoggerReport,
    ProcessTemplate, Refused, RunningLogger, Text,
};

use super::failed;
use crate::report::ErrorReport;

/// Events by their correlation and their span, and how often each was seen.
pub(super) type SeenEvents = BTreeMap<(String, String), u64>;

/// Writes down every event that the logger accepted.
#[derive(Debug)]
struct AcceptedEvents {
    logger: Logger,
    seen: Mutex<SeenEvents>,
}

impl EventSink for AcceptedEvents {
    fn log(&self, event: Event) -> Result<(), Refused> {
        let text = |field: &Option<Text>| field.as_deref().unwrap_or_default().to_owned();
        let key = (text(&event.correlation_id), text(&event.extras().span_id));
        self.logger.log(event)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen.entry(key).or_default() += 1;
        Ok(())
    }
}

/// A running service.
pub(super) struct DemoResort {
    accepted: Arc<AcceptedEvents>,
    server: Task,
    logger: RunningLogger,
    pub(super) spill: PathBuf,
    url: String,
}

impl DemoResort {
    /// Starts the service on this port. Its logger is configured by `settings`.
    pub(super) fn start(
        env: &Env,
        listener: TcpListener,
        api_url: &str,
        spill: PathBuf,
        settings: LoggerConfigBuilder,
    ) -> Result<Self, ErrorReport> {
        let defaults = Defaults::new("pet-resort-api", "PET_RESORT", "PET_RESORT");
        let config = settings
            .spillover_path(&spill)
            .metrics(false)
            .defaults(defaults)
            .build();
        let config: LoggerConfig =
            config.map_err(|error| failed("cannot configure the logger", &error))?;
        let api = HttpApi::builder(api_url)
            .application_id("pet-resort-api")
            .build(Arc::clone(&env.clock));
        let api = api.map_err(|error| failed("cannot start the HTTP client", &error))?;
        let logger = RunningLogger::start(config, Arc::new(api), None);
        let logger = logger.map_err(|error| failed("cannot start the logger", &error))?;
        let accepted = Arc::new(AcceptedEvents {
            logger: Logger::clone(&logger),
            seen: Mutex::default(),
        });
        let sink: Arc<dyn EventSink> = Arc::clone(&accepted) as _;
        let entropy = env.entropy.fork(&spill.display().to_string());
        let template =
            ProcessTemplate::new(sink, Arc::clone(&env.clock), entropy.fork("processes"));
        let resort = Resort::new(template, entropy.fork("traces"), Pace::default());
        let bound = listener.set_nonblocking(true).and_then(|()| {
            let url = format!("http://{}", listener.local_addr()?);
            Ok((tokio::net::TcpListener::from_std(listener)?, url))
        });
        let (listener, url) = bound.map_err(|error| failed("cannot start the service", &error))?;
        let serving = async move {
            // A service that does not answer ends the demo with the next request.
            let app = router(Arc::new(resort));
            serve(listener, app, std::future::pending()).await.ok();
        };
        Ok(Self {
            accepted,
            server: env.spawn.spawn("pet-resort", Box::pin(serving)),
            logger,
            spill,
            url,
        })
    }

    pub(super) fn logger(&self) -> &Logger {
        &self.logger
    }

    /// A way to call it.
    pub(super) fn guest(&self, client: &reqwest::Client) -> Guest {
        Guest {
            client: client.clone(),
            url: self.url.clone(),
        }
    }

    /// The events that its logger accepted so far.
    pub(super) fn accepted_events(&self) -> SeenEvents {
        let seen = self.accepted.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops the service and its logger.
    pub(super) fn stop(self) -> LoggerReport {
        self.server.abort();
        self.logger.shutdown()
    }
}

/// Somebody who calls the service over HTTP.
#[derive(Clone)]
pub(super) struct Guest {
    client: reqwest::Client,
    url: String,
}

impl Guest {
    /// Whether the service answers.
    pub(super) async fn look_around(&self) -> Result<(), ErrorReport> {
        let asked = self.client.get(format!("{}/api/bookings", self.url));
        self.send(asked, "setup", StatusCode::OK).await.map(drop)
    }

    /// Books a stay, as the business case `case`, and gives the number of the booking.
    pub(super) async fn book(&self, case: &str) -> Result<String, ErrorReport> {
        let stay =
            json!({"petId": "PET-001", "checkInDate": "2099-06-01", "checkOutDate": "2099-06-04"});
        let booking = self.post("bookings", &stay, case, StatusCode::CREATED);
        let booking = booking.await?;
        Ok(booking["id"].as_str().unwrap_or_default().to_owned())
    }

    pub(super) async fn check_in(&self, id: &str, case: &str) -> Result<(), ErrorReport> {
        let path = format!("bookings/{id}/check-in");
        let wish = json!({ "kennelPreference": "sunny" });
        let done = self.post(&path, &wish, case, StatusCode::OK);
        done.await.map(drop)
    }

    pub(super) async fn order(&self, id: &str, case: &str) -> Result<(), ErrorReport> {
        let order = json!({"petId": "PET-001", "bookingId": id, "item": "steak", "quantity": 1});
        let done = self.post("room-service", &order, case, StatusCode::CREATED);
        done.await.map(drop)
    }

    pub(super) async fn check_out(&self, id: &str, case: &str) -> Result<(), ErrorReport> {
        let path = format!("bookings/{id}/check-out");
        let payment = json!({"paymentAmount": 120.5, "cardNumberLast4": "4242"});
        let done = self.post(&path, &payment, case, StatusCode::OK);
        done.await.map(drop)
    }

    async fn post(
        &self,
        path: &str,
        body: &Value,
        case: &str,
        expected: StatusCode,
    ) -> Result<Value, ErrorReport> {
        let asked = self.client.post(format!("{}/api/{path}", self.url));
        self.send(asked.json(body), case, expected).await
    }

    /// A service whose event log is down must work all the same, so any other answer ends the demo.
    async fn send(
        &self,
        asked: reqwest::RequestBuilder,
        case: &str,
        expected: StatusCode,
    ) -> Result<Value, ErrorReport> {
        let answer = asked.header("x-correlation-id", case).send().await;
        let answer = answer.map_err(|error| failed("the service does not answer", &error))?;
        let status = answer.status();
        let body = answer.json().await;
        let body: Value = body.map_err(|error| failed("the service answers no JSON", &error))?;
        if status != expected {
            let message = format!("the service answers {status}, not {expected}: {body}");
            return Err(ErrorReport::new("demo.failed", message));
        }
        Ok(body)
    }
}
