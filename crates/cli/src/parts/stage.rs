//! The stages: one for each process of the flows that the configuration names.

use std::path::Path;
use std::sync::Arc;

use tidegate_client::RemoteComponent;
use tidegate_config::{Config, Part as Section};
use tidegate_core::books::{AcceptedEvents, Audited, ComponentAccount};
use tidegate_core::env::{BoxFuture, Env};
use tidegate_core::{Component, EventId, EventLocation, Failure, HealthFinding};
use tidegate_flow::plan::FlowPlan;
use tidegate_log::{LogBackend, LogOptions, OpenLog, OwnedGroup};
use tidegate_server::stage::{StageApi, stage_routes};
use tidegate_stage::operators::RegisteredFunctions;
use tidegate_stage::{Stage, StageBooks, StageCheckpoints, StageComponent, StageOptions};

use super::connector::host;
use super::{InspectionTargets, Part, PartFuture, Process};
use crate::args::{AuditArgs, ConfigFile};
use crate::commands::flow;
use crate::log;
use crate::report::ErrorReport;
use crate::settings::read_text;
use crate::table;

pub(super) struct StagePart;

impl Part for StagePart {
    fn sections(&self) -> &'static [Section] {
        &[Section::Flows]
    }

    fn open<'a>(&'a self, process: &'a mut Process) -> PartFuture<'a> {
        Box::pin(async {
            let Some(plan) = flow::plan_of_config(&process.config)? else {
                return Ok(());
            };
            let Some(log) = process.log.clone() else {
                let message = "flows read and write a log, and none is configured";
                return Err(process.config.problem("flows", &message).into());
            };
            let plan = Arc::new(plan);
            let functions = Arc::new(functions(&process.config, &plan)?);
            let mut stages = Vec::new();
            for options in options(&process.config, &plan)? {
                let stage = Stage::new(
                    Arc::clone(&plan),
                    options,
                    Arc::clone(&functions),
                    Arc::clone(&log),
                    &process.env,
                )?;
                let component = StageComponent::new(stage.clone());
                process.components.push(Arc::new(component));
                stages.push(stage);
            }
            let names: Vec<&str> = stages.iter().map(Stage::name).collect();
            let count = table::counted(names.len() as u64, "stage");
            let shown = format!("{count}: {}", names.join(", "));
            process.banner.push(("flows", shown));
            let keys = process.idempotency_keys().await?;
            process.routes.push(stage_routes(StageApi { stages, keys }));
            Ok(())
        })
    }

    fn is_named(&self, arguments: &AuditArgs) -> bool {
        arguments.at.dir.is_some()
    }

    /// A running process answers for its stages. Otherwise the log is opened for each question.
    fn inspect<'a>(&'a self, inspection: &'a mut InspectionTargets) -> PartFuture<'a> {
        Box::pin(async {
            let (at, env) = (&inspection.arguments.at, &inspection.env);
            let (log, config) = inspection.log_options()?;
            let Some(plan) = flow::plan_of_config(&config)? else {
                return Ok(());
            };
            let plan = Arc::new(plan);
            let stages = options(&config, &plan)?;
            if let LogBackend::Embedded(embedded) = &log.backend {
                if !log::must_be_there(&embedded.dir, at)? {
                    return Ok(());
                }
                if let Some(client) = log::answering(&embedded.dir, at, &config)? {
                    for stage in stages {
                        let name = format!("stage.{}", stage.process);
                        let remote = RemoteComponent::new(client.clone(), Some(&name));
                        inspection.components.push(Arc::new(remote));
                    }
                    return Ok(());
                }
            }
            for stage in stages {
                inspection.components.push(Arc::new(OfflineStage {
                    name: format!("stage.{}", stage.process),
                    log: log.clone(),
                    plan: Arc::clone(&plan),
                    stage,
                    env: env.fork("stages"),
                }));
            }
            Ok(())
        })
    }
}

/// The settings of every process of a plan.
fn options(config: &Config, plan: &FlowPlan) -> Result<Vec<StageOptions>, ErrorReport> {
    let host = host();
    let limit = config.integer("log.embedded.max-commit-size");
    let mut found: Vec<StageOptions> = Vec::new();
    for (name, process) in &plan.processes {
        let mut options = StageOptions::from_config(config, name, process, &host)?;
        if let Some(limit) = limit.and_then(|limit| u64::try_from(limit).ok()) {
            options.max_commit_size = options.max_commit_size.min(limit);
        }
        if let Some(other) = found.iter().find(|other| other.group == options.group) {
            let message = format!(
                "the processes `{}` and `{name}` have the same group `{}`: give each a `group-id` of its own",
                other.process, options.group
            );
            return Err(config.problem("streams", &message).into());
        }
        found.push(options);
    }
    Ok(found)
}

/// The groups of the stages of a configuration, for whose books they answer.
pub(crate) fn owned_groups(config: &Config) -> Result<Vec<OwnedGroup>, ErrorReport> {
    let Some(plan) = flow::plan_of_config(config)? else {
        return Ok(Vec::new());
    };
    let mut owned = Vec::new();
    for options in options(config, &plan)? {
        if let Some(process) = plan.processes.get(&options.process) {
            let groups = options.owned_groups(process);
            owned.extend(groups.map_err(|error| config.problem("streams", &error))?);
        }
    }
    Ok(owned)
}

/// Lookups of files. Others cannot be asked yet.
fn functions(config: &Config, plan: &FlowPlan) -> Result<RegisteredFunctions, ErrorReport> {
    let mut functions = RegisteredFunctions::default();
    for (name, lookup) in &plan.lookups {
        let path = format!("lookups.\"{name}\"");
        match config.text(&format!("{path}.type")) {
            Some("file") => {}
            Some(other) => {
                let message =
                    format!("a stage cannot ask a lookup of type `{other}` yet: use `file`");
                return Err(config.problem(&format!("{path}.type"), &message).into());
            }
            None => continue,
        }
        let key = format!("{path}.path");
        let file = config.text(&key).unwrap_or_default();
        let text = read_text(Path::new(file));
        let text = text.map_err(|error| config.problem(&key, &error))?;
        functions = functions
            .lookup_of_text(name, lookup, &text)
            .map_err(|error| config.problem(&key, &error))?;
    }
    Ok(functions)
}

/// A stage that is stopped, with its log.
pub(crate) struct OpenedStage {
    open: OpenLog,
    pub(crate) checkpoints: StageCheckpoints,
}

impl OpenedStage {
    /// Opens the log of a stage for writing; no process may have it.
    pub(crate) async fn of(process: &str, file: &ConfigFile) -> Result<Self, ErrorReport> {
        let env = Env::system();
        let (log, config) = log::configured(file, None)?;
        let plan = flow::plan_of_config(&config)?.unwrap_or_default();
        let found = options(&config, &plan)?.into_iter();
        let Some(settings) = found.into_iter().find(|one| one.process == process) else {
            let message = format!("the configured `flows` have no process `{process}`");
            return Err(config.problem("flows", &message).into());
        };
        let open = OpenLog::open(&log, &env, None)
            .await
            .map_err(Failure::from)?;
        let books = StageBooks::new(open.log(), &env, Arc::new(plan), settings)?;
        let checkpoints = StageCheckpoints::new(books, &env)?;
        Ok(Self { open, checkpoints })
    }

    pub(crate) async fn close(self) {
        self.open.close().await;
    }
}

/// A stage of a log that no process answers for.
#[derive(Debug)]
struct OfflineStage {
    name: String,
    log: LogOptions,
    plan: Arc<FlowPlan>,
    stage: StageOptions,
    env: Env,
}

impl OfflineStage {
    async fn open(&self) -> Result<(OpenLog, StageBooks), Failure> {
        let open = OpenLog::open(&self.log, &self.env, None).await?;
        let plan = Arc::clone(&self.plan);
        let books = StageBooks::new(open.log(), &self.env, plan, self.stage.clone())?;
        Ok((open, books))
    }
}

impl Component for OfflineStage {
    fn name(&self) -> &str {
        &self.name
    }

    fn accounts(&self) -> BoxFuture<'_, Result<Vec<ComponentAccount>, Failure>> {
        Box::pin(async {
            let (open, books) = self.open().await?;
            let accounts = books.accounts().await;
            open.close().await;
            accounts
        })
    }

    /// Its events are those of topics.
    fn accepted(&self) -> BoxFuture<'_, Result<Vec<AcceptedEvents>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn audit(&self) -> BoxFuture<'_, Result<Vec<Audited>, Failure>> {
        Box::pin(async {
            let (open, books) = self.open().await?;
            let audited = books.audit().await;
            open.close().await;
            audited
        })
    }

    fn locate(&self, id: EventId) -> BoxFuture<'_, Result<Vec<EventLocation>, Failure>> {
        Box::pin(async move {
            let (open, books) = self.open().await?;
            let found = books.locate(id).await;
            open.close().await;
            found
        })
    }

    fn health(&self) -> BoxFuture<'_, HealthFinding> {
        Box::pin(async { HealthFinding::up() })
    }
}
