//! The log: in its directory, at the process that holds it, or on Kafka.

use std::sync::Arc;

use tidegate_client::RemoteComponent;
use tidegate_config::Part as Section;
use tidegate_core::EventIds;
use tidegate_log::{
    LogBackend, LogComponent, LogDirectory, LogOptions, OpenLog, TopicConfig, embedded,
};
use tidegate_server::log::{LogApi, log_routes};

use super::{InspectionTargets, Part, PartFuture, Process};
use crate::args::AuditArgs;
use crate::log;
use crate::report::say;

pub(super) struct LogPart;

impl Part for LogPart {
    fn sections(&self) -> &'static [Section] {
        &[Section::Log]
    }

    fn open<'a>(&'a self, process: &'a mut Process) -> PartFuture<'a> {
        Box::pin(async {
            let mut options = LogOptions::from_config(&process.config)?;
            options.owned = log::owned_groups(&process.config)?;
            log::warn_if_emptied(&options)?;
            let keys = process.idempotency_keys().await?;
            let env = &process.env;
            let open = OpenLog::open_with_topics(&options, env, Some(process.url.clone())).await?;
            let limits = options.topics.values().map(|topic| topic.max_record_size);
            process.routes.push(log_routes(LogApi {
                log: open.log(),
                admin: Arc::new(open.clone()),
                ids: EventIds::new(Arc::clone(&env.clock), env.entropy.fork("ids")),
                max_record_size: limits.fold(TopicConfig::MAX_RECORD_SIZE, u64::max),
                keys,
            }));
            process.log = Some(open.log());
            let component = LogComponent::new(open, env);
            process.components.push(Arc::new(component));
            process.banner.push(("log", shown(&options)));
            Ok(())
        })
    }

    fn is_named(&self, arguments: &AuditArgs) -> bool {
        arguments.at.dir.is_some()
    }

    fn inspect<'a>(&'a self, inspection: &'a mut InspectionTargets) -> PartFuture<'a> {
        Box::pin(async {
            let (at, env) = (&inspection.arguments.at, &inspection.env);
            let (options, config) = inspection.log_options()?;
            let LogBackend::Embedded(embedded) = options.backend else {
                let open = OpenLog::open(&options, env, None).await?;
                let component = LogComponent::new(open, env);
                inspection.components.push(Arc::new(component));
                return Ok(());
            };
            let dir = &embedded.dir;
            if !log::must_be_there(dir, at)? {
                if config.is_set("log") {
                    let dir = dir.display();
                    say(&format!("there is no log in `{dir}` yet: nothing was sent"));
                }
                return Ok(());
            }
            let is_direct = inspection.arguments.direct;
            if !is_direct && let Some(client) = log::answering(dir, at, &config)? {
                let remote = RemoteComponent::new(client, Some("log"));
                inspection.components.push(Arc::new(remote));
                return Ok(());
            }
            if let Some(loss) = embedded::unknown_loss(&*env.disk, dir)? {
                say(&format!("journal: {loss}"));
            }
            let mut directory = LogDirectory::new(*embedded, env).without(options.owned);
            if is_direct {
                directory = directory.without_lock();
            }
            inspection.components.push(Arc::new(directory));
            Ok(())
        })
    }
}

fn shown(options: &LogOptions) -> String {
    match &options.backend {
        LogBackend::Embedded(embedded) => format!(
            "embedded {}   (Kafka: set log.clusters.default.bootstrap-servers)",
            embedded.dir.display()
        ),
        LogBackend::Kafka(kafka) => format!("kafka {}", kafka.bootstrap_servers),
    }
}
