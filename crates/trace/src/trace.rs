//! What a workload asks of a server: lengths, arrival times and which prompts begin alike.
//!
//! A trace holds no text. Invariants: requests are sorted by arrival, the first arrives at 0; each
//! has at least one prompt token and one output token.

use crate::error::TraceError;
use crate::{azure, mooncake};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

/// Prompt tokens that one id of shared content stands for, as in Mooncake's traces.
pub const TOKENS_PER_ID: u32 = 512;

/// Most tokens of a prompt or an output: far above any model's context, and a million of them
/// cannot overflow a sum.
const MAX_TOKENS: u32 = 1 << 24;

/// One request of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// Time since the first request of the trace.
    pub arrival: Duration,
    /// Tokens of the prompt.
    pub num_prompt_tokens: u32,
    /// Tokens of the output.
    pub num_output_tokens: u32,
    /// What the prompt consists of, one id per 512 tokens: equal ids at equal positions mean equal
    /// prefixes. Empty when the prompt shares nothing with any other.
    pub content_ids: Box<[u64]>,
}

impl TraceRequest {
    /// Returns the length of the whole sequence.
    #[must_use]
    pub fn num_tokens(&self) -> u32 {
        self.num_prompt_tokens + self.num_output_tokens
    }
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What it is called in reports.
    pub name: String,
    /// Where it comes from, in one sentence.
    pub description: String,
    /// The requests, sorted by arrival.
    pub requests: Vec<TraceRequest>,
}

impl Trace {
    /// Reads a recorded trace, in Azure's CSV or Mooncake's JSON Lines.
    ///
    /// # Errors
    /// When the file cannot be read, is in neither format, has no requests, or has a line that is
    /// not as the format says.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let unreadable = |source| TraceError::Read { path: path.to_owned(), source };
        let mut reader = BufReader::new(File::open(path).map_err(unreadable)?);
        let start = reader.fill_buf().map_err(unreadable)?;
        let is_mooncake = start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        let (kind, requests) = if is_mooncake {
            ("Mooncake's format", read_lines(path, reader, &mut mooncake::Lines)?)
        } else {
            ("Azure's format", read_lines(path, reader, &mut azure::Lines::default())?)
        };
        let name = path.file_name().map_or_else(String::new, |name| name.display().to_string());
        let description = format!("recorded requests in {kind}, {}", path.display());
        Ok(Self { name, description, requests })
    }

    /// Returns the length of the longest sequence.
    #[must_use]
    pub fn num_tokens_of_longest(&self) -> u32 {
        self.requests.iter().map(TraceRequest::num_tokens).max().unwrap_or(0)
    }
}

/// A format with one request a line.
pub(crate) trait LineFormat {
    /// Reads one line, the first one has number 1; `None` for a header. The arrival is in the
    /// format's own time.
    ///
    /// # Errors
    /// What is wrong with the line.
    fn request(&mut self, line: &str, number: usize) -> Result<Option<TraceRequest>, LineError>;
}

/// What is wrong with a line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineError {
    /// What a line of the format holds there.
    pub(crate) expected: String,
    /// What it holds instead.
    pub(crate) found: String,
}

/// Checks the lengths of one request.
pub(crate) fn check_lengths(prompt: u32, output: u32) -> Result<(), LineError> {
    for (what, got) in [("prompt", prompt), ("output", output)] {
        if !(1..=MAX_TOKENS).contains(&got) {
            let expected = format!("{what} tokens between 1 and {MAX_TOKENS}");
            return Err(LineError { expected, found: got.to_string() });
        }
    }
    Ok(())
}

fn read_lines(
    path: &Path,
    reader: impl BufRead,
    format: &mut dyn LineFormat,
) -> Result<Vec<TraceRequest>, TraceError> {
    let mut requests = Vec::new();
    for (number, line) in (1..).zip(reader.lines()) {
        let path = || path.to_owned();
        let line = line.map_err(|source| TraceError::Read { path: path(), source })?;
        if line.trim().is_empty() {
            continue;
        }
        let request =
            format.request(line.trim(), number).map_err(|LineError { expected, found }| {
                TraceError::Line { path: path(), line: number, expected, found }
            })?;
        requests.extend(request);
    }
    requests.sort_by_key(|request| request.arrival);
    let Some(first) = requests.first() else {
        return Err(TraceError::Empty { path: path.to_owned() });
    };
    let start = first.arrival;
    for request in &mut requests {
        request.arrival -= start;
    }
    Ok(requests)
}
