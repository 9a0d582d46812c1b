//! White space is legal almost everywhere in JSON, and a weak model would write nothing else.

use crate::random_writer::RandomWriter;
use mini_infer_core::FinishReason;
use mini_infer_grammar::{GrammarSource, OutputShape};
use serde_json::json;

/// A line break and the longest indent.
const LONGEST: usize = 21;

/// Returns the longest run of white space outside of strings.
fn longest_run(text: &str) -> usize {
    let (mut longest, mut run) = (0, 0);
    let (mut in_string, mut is_escaped) = (false, false);
    for c in text.chars() {
        run = if !in_string && c.is_ascii_whitespace() { run + 1 } else { 0 };
        longest = longest.max(run);
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => in_string = !in_string,
            _ => {}
        }
    }
    longest
}

#[test]
fn runs_of_white_space_are_bounded() {
    let writer = RandomWriter::new();
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer", "maximum": 9}}},
        "required": ["a"],
    });
    let lark = format!("start: \"x\" %json {schema}");
    let mut longest = 0;
    for source in [
        GrammarSource::JsonObject,
        GrammarSource::JsonSchema(schema.clone()),
        GrammarSource::Lark(lark),
        GrammarSource::Shape(OutputShape::Json(schema)),
    ] {
        for output in writer.write(&source, 0..16).unwrap() {
            longest = longest.max(longest_run(&output.text));
        }
    }
    assert!((2..=LONGEST).contains(&longest), "{longest}");
}

#[test]
fn an_object_is_what_json_object_gives_and_it_stops_with_its_last_brace() {
    let writer = RandomWriter::new();
    let outputs = writer.write(&GrammarSource::JsonObject, 0..32).unwrap();
    let mut num_finished = 0;
    for output in outputs.iter().filter(|output| output.reason == FinishReason::Stop) {
        let value: serde_json::Value = serde_json::from_str(&output.text).unwrap();
        assert!(value.is_object() && output.text.ends_with('}'), "{}", output.text);
        num_finished += 1;
    }
    assert!(num_finished > 16, "{num_finished}");
}
