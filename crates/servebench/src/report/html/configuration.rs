//! What the runs were asked and where they ran, field by field, and in what they differ.
//!
//! Every field of `run.json`'s `config` and `environment` is here: a field added there shows up on
//! the page, and makes runs that differ in it not comparable, until [`INCIDENTAL`] says otherwise.

use super::markup::{Column, Field, Table};
use crate::results::RunResult;
use serde::Serialize;
use serde_json::{Map, Value};

/// Fields of `config` that may differ without making figures incomparable: what is compared, how
/// long and how often it was measured, what the page counts again.
const INCIDENTAL: [&str; 17] = [
    "url",
    "model",
    "levels",
    "num_requests",
    "duration",
    "min_duration",
    "repeat",
    "warmup",
    "seed",
    "timeout",
    "slo_ttft_ms",
    "slo_tpot_ms",
    "tokenizer",
    "gpu_telemetry",
    "scrape_metrics",
    "max_concurrency",
    "mode",
];

/// Fields of `environment` that name the machine.
const MACHINE: [&str; 4] = ["cpu", "gpus", "platform", "ram_gb"];

/// A field of all runs.
struct FieldOfRuns {
    name: String,
    values: Vec<String>,
}

impl FieldOfRuns {
    fn differs(&self) -> bool {
        self.values.windows(2).any(|pair| pair[0] != pair[1])
    }
}

/// Returns in what the runs differ that makes them not comparable, in sentences.
pub(super) fn differences(runs: &[RunResult]) -> Vec<String> {
    let said = |field: &FieldOfRuns| {
        let values = runs.iter().zip(&field.values);
        let each: Vec<String> =
            values.map(|(run, value)| format!("{value} for {}", run.label)).collect();
        format!("{} is {}", field.name, each.join(", "))
    };
    let mut sentences = Vec::new();
    for field in fields(runs, |run| &run.config).iter().filter(|field| field.differs()) {
        match field.name.as_str() {
            "mode" => sentences.push(
                "Some runs count users at once, others offered requests/s: each kind has its own \
                 charts"
                    .to_owned(),
            ),
            "model" => sentences.push(format!(
                "The models have different names: {}. Figures compare engines only if the weights \
                 are the same",
                said(field)
            )),
            name if !INCIDENTAL.contains(&name) => {
                sentences.push(format!("Not comparable without care: {}", said(field)));
            }
            _ => {}
        }
    }
    for field in fields(runs, |run| &run.environment) {
        if MACHINE.contains(&field.name.as_str()) && field.differs() {
            sentences.push(format!("Measured on different machines: {}", said(&field)));
        }
    }
    sentences
}

/// Returns the tables of what was asked and of where it ran.
pub(super) fn tables(runs: &[RunResult]) -> (Table, Table) {
    let table = |id, caption, fields: Vec<FieldOfRuns>| {
        let mut table = Table::new(id, caption);
        table.column("Field", Column::Text);
        for run in runs {
            table.column(run.label.clone(), Column::Text);
        }
        for field in fields {
            let class = if field.differs() { "code differs" } else { "code" };
            let values =
                field.values.iter().map(|value| Field::text(value.clone()).with_class(class));
            table.row("", std::iter::once(Field::text(field.name.clone())).chain(values).collect());
        }
        table
    };
    (
        table("config", "What was asked", fields(runs, |run| &run.config)),
        table("environment", "Where it ran", fields(runs, |run| &run.environment)),
    )
}

/// Returns the fields of a part of the runs that at least one run states.
fn fields<T: Serialize>(
    runs: &[RunResult],
    part: impl for<'a> Fn(&'a RunResult) -> &'a T,
) -> Vec<FieldOfRuns> {
    let maps: Vec<Map<String, Value>> = runs.iter().map(|run| as_map(part(run))).collect();
    let mut names: Vec<&String> = maps.iter().flat_map(Map::keys).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| FieldOfRuns {
            name: name.clone(),
            values: maps.iter().map(|map| map.get(name).map_or_else(String::new, words)).collect(),
        })
        .filter(|field| field.values.iter().any(|value| !value.is_empty()))
        .collect()
}

fn as_map(part: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(part) {
        Ok(Value::Object(map)) => map,
        // Only a number that JSON lacks, such as infinity, can fail; the page then lacks the table.
        Ok(_) | Err(_) => Map::new(),
    }
}

/// Returns a value as people write it; nothing for null.
fn words(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text == "Infinity" => "inf".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(number) if number.fract() == 0.0 && number.abs() < 1e15 => format!("{number:.0}"),
            _ => number.to_string(),
        },
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Array(values) => values.iter().map(words).collect::<Vec<_>>().join(", "),
        Value::Object(map) => {
            let fields = map.iter().map(|(name, value)| format!("{name}: {}", words(value)));
            fields.collect::<Vec<_>>().join(", ")
        }
    }
}
