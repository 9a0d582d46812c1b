//! Mooncake's traces (Qin et al., FAST 2025): JSON Lines with lengths and the ids of prompt parts.
//!
//! Each line is an object with `timestamp` (milliseconds), `input_length`, `output_length` and
//! `hash_ids`, one id for every 512 prompt tokens, the last one for the rest. An id stands for all
//! tokens up to its end, so equal ids are always at equal positions.

use crate::trace::{LineError, LineFormat, TOKENS_PER_ID, TraceRequest, check_lengths};
use serde::Deserialize;
use std::time::Duration;

/// The fields of a line, for messages.
pub(crate) const FIELDS: &str =
    "{\"timestamp\", \"input_length\", \"output_length\", \"hash_ids\"}";

/// One line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Box<[u64]>,
}

/// Reads lines of a Mooncake trace.
pub(crate) struct Lines;

impl LineFormat for Lines {
    fn request(&mut self, line: &str, _number: usize) -> Result<Option<TraceRequest>, LineError> {
        let line: Line = serde_json::from_str(line).map_err(|error| LineError {
            expected: format!("an object {FIELDS}"),
            found: error.to_string(),
        })?;
        check_lengths(line.input_length, line.output_length)?;
        let num_ids = line.input_length.div_ceil(TOKENS_PER_ID);
        if line.hash_ids.len() != num_ids as usize {
            let expected = format!("{num_ids} hash_ids, one for every {TOKENS_PER_ID} tokens");
            return Err(LineError { expected, found: line.hash_ids.len().to_string() });
        }
        let arrival =
            Duration::try_from_secs_f64(line.timestamp / 1000.0).map_err(|_| LineError {
                expected: "a timestamp in milliseconds, 0 or more".to_owned(),
                found: line.timestamp.to_string(),
            })?;
        Ok(Some(TraceRequest {
            arrival,
            num_prompt_tokens: line.input_length,
            num_output_tokens: line.output_length,
            content_ids: line.hash_ids,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        r#"{"timestamp": 1500, "input_length": 513, "output_length": 6, "hash_ids": [0, 1]}"#;

    fn found(line: &str) -> String {
        let error = Lines.request(line, 1).unwrap_err();
        format!("{} / {}", error.expected, error.found)
    }

    #[test]
    fn a_line_is_a_request() {
        let request = Lines.request(GOOD, 1).unwrap().unwrap();
        assert_eq!(request.arrival, Duration::from_millis(1500));
        assert_eq!((request.num_prompt_tokens, request.num_output_tokens), (513, 6));
        assert_eq!(*request.content_ids, [0, 1]);
    }

    #[test]
    fn damaged_lines_say_what_was_expected() {
        assert!(found(&GOOD[..40]).contains("EOF"));
        assert!(found(&GOOD.replace("input_length", "inputs")).contains("unknown field `inputs`"));
        assert!(found(&GOOD.replace("[0, 1]", "[0]")).contains("2 hash_ids"));
        assert!(found(&GOOD.replace("513", "-3")).contains("-3"));
        assert!(found(&GOOD.replace(": 6", ": 0")).contains("output tokens between 1"));
        assert!(found(&GOOD.replace("1500", "-1")).contains("timestamp in milliseconds"));
        assert!(found(&GOOD.replace("1500", "1e300")).contains("timestamp in milliseconds"));
    }
}
