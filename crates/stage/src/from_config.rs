//! The settings of a stage from the sections `streams`, `resources` and `stage-namespace`.

use std::path::Path;
use std::time::Duration;

use tidegate_config::{Config, Problem};
use tidegate_core::{GroupName, Topic};
use tidegate_flow::plan::ProcessPlan;
use tidegate_log::StartAt;

use crate::checkpoint::{CheckpointMode, CheckpointOptions, CheckpointPlace};
use crate::options::{RestartOptions, StageOptions, StreamOptions};

impl StageOptions {
    /// The settings of a process. Streams and resources that the file does not name have their defaults. `host` is
    /// the name of this machine.
    ///
    /// ```
    /// use tidegate_config::{Inputs, load};
    /// use tidegate_flow::plan::ProcessPlan;
    /// use tidegate_stage::StageOptions;
    /// let text = "streams: {orders: {partitions: 3}}\nresources: {copy: {epoch: {records: 50}}}";
    /// let config = load(&Inputs::of_text("tidegate.yaml", text)).config;
    /// let options = StageOptions::from_config(&config, "copy", &ProcessPlan::default(), "host").unwrap();
    /// assert_eq!((options.epoch_records, options.stream("orders").partitions), (50, Some(3)));
    /// assert_eq!(options.instance, "host-copy");
    /// ```
    ///
    /// # Errors
    /// A value cannot be used; the problem names its place in the file.
    pub fn from_config(
        config: &Config,
        process: &str,
        plan: &ProcessPlan,
        host: &str,
    ) -> Result<Self, Box<Problem>> {
        let named = |path: &str, error: &dyn std::fmt::Display| config.problem(path, error);
        let mut options = Self::new(process).map_err(|error| named("flows", &error))?;
        options.instance = format!("{host}-{process}");
        if let Some(namespace) = config.text("stage-namespace") {
            namespace.clone_into(&mut options.namespace);
        }
        for name in config.names("streams") {
            let path = format!("streams.\"{name}\"");
            let key = |key: &str| format!("{path}.{key}");
            let mut stream = StreamOptions::default();
            if let Some(topic) = config.text(&key("topic")) {
                let topic = Topic::new(topic).map_err(|error| named(&key("topic"), &error))?;
                stream.topic = Some(topic);
            }
            let partitions = config.integer(&key("partitions"));
            stream.partitions = partitions.and_then(|count| u32::try_from(count).ok());
            stream.start = match config.text(&key("auto-offset-reset")) {
                Some("earliest") => StartAt::Earliest,
                Some("latest") => StartAt::Latest,
                _ => StartAt::Fail,
            };
            if let Some(idle) = config.duration(&key("idle-timeout")) {
                stream.idle_timeout = idle;
            }
            options.streams.insert(name.to_owned(), stream);
        }
        options.group_of(config, plan)?;
        let kept = format!("checkpoints.\"{}\"", plan.checkpoint.to);
        if config.names("checkpoints").contains(&&*plan.checkpoint.to) {
            options.checkpoints = Some(checkpoints(config, &kept, process)?);
        }
        let path = format!("resources.\"{process}\"");
        if !config.names("resources").contains(&process) {
            return Ok(options);
        }
        let key = |key: &str| format!("{path}.{key}");
        let count = |name: &str| {
            config
                .integer(&key(name))
                .and_then(|count| u64::try_from(count).ok())
        };
        options.parallelism = count("parallelism").and_then(|count| u32::try_from(count).ok());
        if let Some(instance) = config.text(&key("instance")) {
            instance.clone_into(&mut options.instance);
        }
        options.epoch_records = count("epoch.records").unwrap_or(options.epoch_records);
        options.epoch_interval = config.duration(&key("epoch.interval"));
        let span = |name: &str, usual: Duration| config.duration(&key(name)).unwrap_or(usual);
        options.init_timeout = span("init-timeout", options.init_timeout);
        options.drain_timeout = span("drain-timeout", options.drain_timeout);
        let usual = RestartOptions::default();
        options.restart = RestartOptions {
            initial_delay: span("restart.initial-delay", usual.initial_delay),
            max_delay: span("restart.max-delay", usual.max_delay),
            multiplier: config
                .float(&key("restart.multiplier"))
                .unwrap_or(usual.multiplier),
            max_attempts: count("restart.max-attempts")
                .and_then(|count| u32::try_from(count).ok())
                .unwrap_or(usual.max_attempts),
        };
        Ok(options)
    }

    /// The group of its streams: one for the whole process.
    fn group_of(&mut self, config: &Config, plan: &ProcessPlan) -> Result<(), Box<Problem>> {
        let mut found: Option<(String, &str)> = None;
        for source in &plan.sources {
            let path = format!("streams.\"{}\".group-id", source.stream);
            let Some(group) = config.text(&path) else {
                continue;
            };
            match &found {
                Some((first, other)) if *other != group => {
                    let message = format!(
                        "the process `{}` has one group, and `{first}` says `{other}`",
                        self.process
                    );
                    return Err(config.problem(&path, &message));
                }
                _ => {}
            }
            self.group = GroupName::new(group).map_err(|error| config.problem(&path, &error))?;
            found = Some((path, group));
        }
        Ok(())
    }
}

/// How checkpoints are kept, by the section at this path.
fn checkpoints(
    config: &Config,
    path: &str,
    process: &str,
) -> Result<CheckpointOptions, Box<Problem>> {
    let key = |key: &str| format!("{path}.{key}");
    let text = |name: &str| config.text(&key(name));
    let dir = text("path").unwrap_or("./data/checkpoints");
    let mut options = CheckpointOptions::new(Path::new(dir).join(process));
    if text("type") == Some("s3") {
        let Some(bucket) = text("bucket") else {
            let message = "checkpoints in an object store need their `bucket`";
            return Err(config.problem(&key("type"), &message));
        };
        let prefix = match config.is_set(&key("path")) {
            true => format!("{}/{process}", dir.trim_matches('/')),
            false => process.to_owned(),
        };
        options.place = CheckpointPlace::S3 {
            bucket: bucket.to_owned(),
            prefix,
            endpoint: text("endpoint").map(str::to_owned),
        };
    }
    options.mode = match text("mode") {
        Some("full") => CheckpointMode::Full,
        _ => CheckpointMode::Incremental,
    };
    let retain = config
        .integer(&key("retain"))
        .and_then(|count| usize::try_from(count).ok());
    options.retain = retain.unwrap_or(options.retain);
    let span = |name: &str, usual| config.duration(&key(name)).unwrap_or(usual);
    options.timeout = span("timeout", options.timeout);
    options.min_pause = span("min-pause", options.min_pause);
    options.shared = config.flag(&key("shared")).unwrap_or(false);
    Ok(options)
}
