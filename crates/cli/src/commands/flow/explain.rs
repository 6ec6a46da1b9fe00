//! `tidegate flow explain`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::json;
use tidegate_config::format_duration;
use tidegate_flow::plan::{
    FlowPlan, LedgerPlace, PlanChange, PlanChangeKind, ProcessPlan, StatePlan, TopicKind, compare,
};

use super::{graph, plan_of, print_lines};
use crate::args::{FlowExplain, Output};
use crate::report::{ErrorReport, Exit};
use crate::table::grid;

pub(super) fn run(arguments: &FlowExplain, output: Output) -> Result<Exit, ErrorReport> {
    let mut plan = plan_of(std::slice::from_ref(&arguments.file))?;
    if let Some(process) = &arguments.process {
        if !plan.processes.contains_key(process) {
            let near = tidegate_config::nearest(process, plan.processes.keys().map(String::as_str));
            let report =
                ErrorReport::new("usage.process", format!("there is no process `{process}`"));
            let report = report.with_exit(Exit::Usage);
            return Err(match near {
                Some(near) => report.with_hint(format!("did you mean `{near}`?")),
                None => report,
            });
        }
        plan.processes.retain(|name, _| name == process);
    }
    if arguments.graph {
        let text = graph::mermaid(&plan);
        output.print(&json!({ "mermaid": text }), || text.trim_end().to_owned())?;
        return Ok(Exit::Ok);
    }
    if let Some(old) = &arguments.against {
        let old = plan_of(std::slice::from_ref(old))?;
        return against(&old, &plan, output);
    }
    match output {
        Output::Json => {
            let document = json!({ "fingerprint": plan.fingerprint(), "plan": plan.to_json() });
            output.print(&document, String::new)?;
        }
        Output::Table => {
            let texts: Vec<String> = plan
                .processes
                .iter()
                .map(|(name, process)| text(name, process))
                .collect();
            print_lines(&texts)?;
        }
    }
    Ok(Exit::Ok)
}

fn against(old: &FlowPlan, new: &FlowPlan, output: Output) -> Result<Exit, ErrorReport> {
    let changes = compare(old, new, &BTreeMap::new());
    let is_well = changes.iter().all(|change| change.code.is_none());
    output.print(&json!({ "changes": changes }), || {
        if changes.is_empty() {
            return "neither flow keeps state".to_owned();
        }
        let row = |change: &PlanChange| {
            let kind = match change.kind {
                PlanChangeKind::Kept => "kept",
                PlanChangeKind::Added => "added",
                PlanChangeKind::Dropped => "dropped",
                PlanChangeKind::NeedsMigration => "needs migration",
                PlanChangeKind::Repartitioned => "repartitioned",
            };
            let code = change.code.unwrap_or_default().to_owned();
            vec![
                change.process.clone(),
                change.id.clone(),
                kind.to_owned(),
                code,
                change.text.clone(),
            ]
        };
        grid(
            &["process", "state", "", "code", ""],
            changes.iter().map(row).collect(),
        )
    })?;
    Ok(Exit::Findings.unless(is_well))
}

fn text(name: &str, process: &ProcessPlan) -> String {
    let mut out = format!("process {name}\n");
    let keys = |key: &[String]| {
        if key.is_empty() {
            "the key of the records".to_owned()
        } else {
            key.join(", ")
        }
    };
    let mut line = |head: &str, text: String| {
        // Writing to a string cannot fail.
        writeln!(out, "  {head:<12} {text}").ok();
    };
    line("partition by", keys(&process.partition_by));
    match &process.time {
        Some(time) => {
            let field = time.field.as_deref().unwrap_or("the time of each schema");
            line(
                "time",
                format!(
                    "{field}, watermark {} behind",
                    millis(time.watermark_delay_ms)
                ),
            );
        }
        None => line("time", "processing time".to_owned()),
    }
    for source in &process.sources {
        let schema = source.schema.as_deref().unwrap_or("none");
        line(
            "input",
            format!("{} from {}, schema {schema}", source.alias, source.stream),
        );
        if let Some(topic) = &source.repartition {
            line("", format!("repartitioned through {topic}"));
        }
    }
    for state in &process.state {
        line("state", state_text(state, keys(&state.key)));
    }
    for topic in &process.topics {
        let kind = match topic.kind {
            TopicKind::Repartition => "repartition",
            TopicKind::Changelog => "changelog",
            TopicKind::DeadLetter => "dead letters",
        };
        line("topic", format!("{} ({kind})", topic.name));
    }
    for way in &process.ways_out {
        let place = match way.place {
            LedgerPlace::Delivered => "delivered",
            LedgerPlace::Parked => "parked",
            LedgerPlace::DeadLettered => "dead-lettered",
            LedgerPlace::Lost => "LOST",
        };
        let stream = way
            .stream
            .as_deref()
            .map_or(String::new(), |stream| format!(" to {stream}"));
        let reason = way
            .reason
            .as_deref()
            .map_or(String::new(), |reason| format!(", reason {reason}"));
        line("way out", format!("{}{stream}: {place}{reason}", way.by));
    }
    out.truncate(out.trim_end().len());
    out
}

fn state_text(state: &StatePlan, key: String) -> String {
    let mut text = format!(
        "{} by {key}, about {} bytes per entry",
        state.id, state.entry_bytes
    );
    if let Some(ttl) = &state.ttl {
        let clock = if ttl.is_event_time {
            "event time"
        } else {
            "processing time"
        };
        write!(
            text,
            ", ttl {} since {} by {clock}",
            millis(ttl.after_ms),
            ttl.since
        )
        .ok();
    }
    if let Some(timer) = state.timer_ms {
        write!(text, ", timer {}", millis(timer)).ok();
    }
    text
}

fn millis(millis: u64) -> String {
    format_duration(Duration::from_millis(millis))
}
