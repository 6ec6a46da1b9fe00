//! A plan as Mermaid text.

use std::collections::BTreeSet;
use std::fmt::Write;

use tidegate_flow::plan::{FlowPlan, LedgerPlace, OperatorPlan, ProcessPlan};

/// Streams, steps and dead letters as one picture.
pub(super) fn mermaid(plan: &FlowPlan) -> String {
    let mut out = String::from("flowchart LR\n");
    let mut streams: BTreeSet<String> = BTreeSet::new();
    for (name, process) in &plan.processes {
        streams.extend(process.sources.iter().map(|source| source.stream.clone()));
        streams.extend(process.ways_out.iter().filter_map(|way| way.stream.clone()));
        edges(name, process, &mut out);
    }
    for stream in streams {
        // Writing to a string cannot fail.
        writeln!(out, "    {}[({stream})]", id(&stream)).ok();
    }
    out
}

fn edges(name: &str, process: &ProcessPlan, out: &mut String) {
    writeln!(out, "    subgraph {name}").ok();
    // The node that a stream of the process stands at, which moves with each step.
    let mut at: Vec<(String, String)> = Vec::new();
    let mut outside = String::new();
    for source in &process.sources {
        let node = format!("{name}_in_{}", source.alias);
        writeln!(out, "        {node}[{}]", source.alias).ok();
        writeln!(outside, "    {} --> {node}", id(&source.stream)).ok();
        at.push((source.alias.clone(), node));
    }
    for (index, step) in process.steps.iter().enumerate() {
        let node = format!("{name}_{index}");
        writeln!(out, "        {node}[{}]", label(&step.operator)).ok();
        for input in &step.inputs {
            if let Some((_, from)) = at.iter().rev().find(|(stream, _)| stream == input) {
                writeln!(out, "        {from} --> {node}").ok();
            }
        }
        if let OperatorPlan::Emit { stream } = &step.operator {
            writeln!(outside, "    {node} --> {}", id(stream)).ok();
        }
        if let OperatorPlan::Route {
            arms, otherwise, ..
        } = &step.operator
        {
            for arm in arms {
                writeln!(outside, "    {node} --> {}", id(&arm.stream)).ok();
            }
            if let tidegate_flow::plan::OtherwisePlan::To(stream) = otherwise {
                writeln!(outside, "    {node} --> {}", id(stream)).ok();
            }
        }
        at.push((step.output.clone(), node));
    }
    writeln!(out, "    end").ok();
    out.push_str(&outside);
    let others = process
        .ways_out
        .iter()
        .filter(|way| !["emit", "route"].contains(&way.by.as_str()));
    for way in others.filter(|way| way.place != LedgerPlace::Parked) {
        if let Some(stream) = &way.stream {
            writeln!(out, "    {name} -. {} .-> {}", way.by, id(stream)).ok();
        }
    }
}

fn id(stream: &str) -> String {
    format!("stream_{stream}")
}

fn label(operator: &OperatorPlan) -> String {
    match operator {
        OperatorPlan::Filter { .. } => "filter".to_owned(),
        OperatorPlan::Validate { .. } => "validate".to_owned(),
        OperatorPlan::Enrich { lookup, .. } => format!("enrich {lookup}"),
        OperatorPlan::Transform { transform, .. } => format!("transform {}", transform.name),
        OperatorPlan::Assign { .. } => "transform".to_owned(),
        OperatorPlan::Deduplicate { by, .. } => format!("deduplicate {}", by.join(" ")),
        OperatorPlan::Window { .. } => "window".to_owned(),
        OperatorPlan::Aggregate { using } => format!("aggregate {}", using.name),
        OperatorPlan::Join { .. } => "join".to_owned(),
        OperatorPlan::Merge => "merge".to_owned(),
        OperatorPlan::Await { .. } => "await".to_owned(),
        OperatorPlan::Hold { hold, .. } => format!("hold {hold}"),
        OperatorPlan::Route { .. } => "route".to_owned(),
        OperatorPlan::Emit { stream } => format!("emit {stream}"),
    }
}
