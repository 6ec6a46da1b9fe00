//! A binding in a process of its own, which the test kills or stops.

use std::ffi::OsStr;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use tidegate_connector::{Binding, BindingOptions, BoundHandler, Connector, TierOptions};
use tidegate_core::env::Env;
use tidegate_log::kafka::{KafkaConfig, KafkaLog};
use tidegate_testkit::child::{self, ChildLines};

use crate::ordered_processes as ordered;
use crate::scene::{text, transient};
use crate::scripted_log::{CommitFault, ScriptedLog};

/// The shortest session that a broker takes.
pub(crate) const SESSION: Duration = Duration::from_secs(6);

/// How a process behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// It works until it is killed.
    Calm,
    /// It is slow: 20 ms for each record.
    Slow,
    /// It is killed before the commit of its first hand-off.
    DieBefore,
    /// It is killed so many microseconds into that commit, or right behind it.
    DieWithin(u64),
    /// It works on ordered keys, with rows in PostgreSQL, until it is killed.
    Ordered,
}

impl Part {
    fn to_text(self) -> String {
        match self {
            Self::Calm => "calm".to_owned(),
            Self::Slow => "slow".to_owned(),
            Self::DieBefore => "before".to_owned(),
            Self::DieWithin(micros) => micros.to_string(),
            Self::Ordered => "ordered".to_owned(),
        }
    }
}

/// The binding of the processes. The first delivery of a value with `bad` in it fails.
pub(crate) fn options(topic: &str, group: &str, is_static: bool) -> BindingOptions {
    let mut options = BindingOptions::new("orders", topic, group).unwrap();
    options.session_timeout = SESSION;
    options.heartbeat_interval = Duration::from_secs(2);
    options.retry.tier0.max_attempts = 1;
    options.retry.tiers = vec![TierOptions::new(Duration::from_millis(100))];
    options.static_membership = is_static;
    options.group_instance_id = is_static.then(|| format!("{group}-instance"));
    options
}

pub(crate) fn handler(
    tells: impl Fn(&str, u32) + Send + Sync + 'static,
    wait: Duration,
) -> BoundHandler {
    let tells = Arc::new(tells);
    BoundHandler::from_fn(move |record| {
        let tells = Arc::clone(&tells);
        async move {
            let value = text(record.value());
            tells(&value, record.tier().0);
            tokio::time::sleep(wait).await;
            match record.tier().0 {
                0 if value.contains("bad") => transient("timeout.read"),
                _ => Ok(()),
            }
        }
    })
}

pub(crate) fn start(part: Part, topic: &str, group: &str, is_static: bool) -> (Child, ChildLines) {
    let part = part.to_text();
    let is_static = is_static.to_string();
    let variables = [
        ("CONNECTOR_CHILD", part.as_str()),
        ("CONNECTOR_CHILD_TOPIC", topic),
        ("CONNECTOR_CHILD_GROUP", group),
        ("CONNECTOR_CHILD_STATIC", is_static.as_str()),
    ];
    let variables = variables.map(|(name, value)| (name, OsStr::new(value)));
    child::start(&variables).unwrap()
}

#[test]
fn child_process_entry() {
    let Ok(part) = std::env::var("CONNECTOR_CHILD") else {
        return;
    };
    let variable = |name: &str| std::env::var(name).unwrap();
    let (topic, group) = (
        variable("CONNECTOR_CHILD_TOPIC"),
        variable("CONNECTOR_CHILD_GROUP"),
    );
    let is_static = variable("CONNECTOR_CHILD_STATIC") == "true";
    let wait = Duration::from_millis(if part == "slow" { 20 } else { 0 });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let env = Env::system();
        let config = KafkaConfig::new("test", variable("KAFKA_BOOTSTRAP"));
        let log = KafkaLog::connect(config, env.fork("kafka")).await.unwrap();
        let log = ScriptedLog::new(&(Arc::new(log) as _));
        match part.as_str() {
            "calm" | "slow" | "ordered" => {}
            "before" => log.fail_next(CommitFault::DieBefore),
            micros => {
                let wait = Duration::from_micros(micros.parse().unwrap());
                log.fail_next(CommitFault::DieWithin(wait));
            }
        }
        if part == "ordered" {
            let tells = |line: String| child::say(&line);
            let connector = ordered::start(Arc::new(log), &env, &topic, &group, tells).await;
            std::future::pending::<()>().await;
            drop(connector);
            return;
        }
        log.on_lost(|| child::say("lost"));
        let connector = Connector::new(Arc::new(log), &env);
        let tells = |value: &str, tier| child::say(&format!("call {value} {tier}"));
        let binding = Binding::new(options(&topic, &group, is_static), handler(tells, wait));
        connector.register(binding).unwrap();
        connector.start("orders").await.unwrap();
        // Until it is killed, or whoever started it is gone.
        std::future::pending::<()>().await;
    });
}
