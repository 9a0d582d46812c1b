//! Whatever is finished validates, whatever the schema asks for.

use crate::generated_schemas;
use crate::random_writer::{Output, RandomWriter};
use crate::schema_list;
use mini_infer_core::FinishReason;
use mini_infer_grammar::GrammarSource;
use serde_json::Value;

/// Schemas that are tried: those of the list, and generated ones.
const NUM_SCHEMAS: u64 = 200;
/// Outputs of each.
const NUM_OUTPUTS: u64 = 4;

#[test]
fn every_finished_output_validates_under_two_hundred_schemas() {
    let writer = RandomWriter::new();
    let mut schemas = schema_list::schemas();
    let num_listed = schemas.len() as u64;
    schemas.extend((num_listed..NUM_SCHEMAS).map(generated_schemas::schema));
    let (mut num_finished, mut num_cut) = (0, 0);
    let mut faults = Vec::new();
    for (i, schema) in schemas.iter().enumerate() {
        let first = i as u64 * NUM_OUTPUTS;
        let source = GrammarSource::JsonSchema(schema.clone());
        let outputs = match writer.write(&source, first..first + NUM_OUTPUTS) {
            Ok(outputs) => outputs,
            Err(error) => {
                faults.push(format!("{error}\n{schema}"));
                continue;
            }
        };
        for Output { text, reason } in outputs {
            match reason {
                FinishReason::Stop => num_finished += 1,
                FinishReason::Length => {
                    num_cut += 1;
                    continue;
                }
                reason @ (FinishReason::Abort | FinishReason::Error(_)) => {
                    faults.push(format!("{reason:?}: {text}\n{schema}"));
                }
            }
            if let Some(fault) = fault(schema, &text) {
                faults.push(format!("{fault}: {text}\n{schema}"));
            }
        }
    }
    println!("{num_finished} finished and validate, {num_cut} were cut");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n\n"));
    assert_eq!(schemas.len() as u64, NUM_SCHEMAS);
    assert!(num_finished >= NUM_SCHEMAS * NUM_OUTPUTS * 4 / 5, "too few outputs end");
}

/// Returns what is wrong with an output that was finished.
fn fault(schema: &Value, text: &str) -> Option<String> {
    let validator = jsonschema::validator_for(schema).unwrap();
    match serde_json::from_str::<Value>(text) {
        Ok(value) => validator.validate(&value).err().map(|error| error.to_string()),
        // JSON, but of a number that no double holds.
        Err(error) if error.to_string().contains("out of range") => None,
        Err(error) => Some(error.to_string()),
    }
}
