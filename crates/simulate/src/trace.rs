//! What a workload asks of a server: lengths, arrival times and which prompts begin alike.
//!
//! A trace holds no text. Prompts are made when a request is submitted: those with shared content
//! from the ids of their parts, all others as the same token in a namespace of their own, so that
//! they never match by chance and cost nothing to make. Output tokens are always
//! [`OUTPUT_TOKEN`], which no prompt contains.
//!
//! Invariants: requests are sorted by arrival, the first arrives at 0; each has at least one prompt
//! token and one output token.

use crate::error::SimulateError;
use crate::{azure, mooncake};
use mini_infer_core::{Namespace, TokenId, mix64};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

/// Number of logits in a simulated row; more would only cost time.
pub(crate) const VOCAB_SIZE: usize = 16;

/// What every output consists of.
pub(crate) const OUTPUT_TOKEN: TokenId = 15;

/// Prompt tokens that one id of shared content stands for, as in Mooncake's traces.
pub(crate) const TOKENS_PER_ID: u32 = 512;

/// Bits of a prompt token: 0 to 7.
const TOKEN_BITS: u32 = 3;

/// Prompt tokens in one hashed word.
const TOKENS_PER_WORD: u32 = u64::BITS / TOKEN_BITS;

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

    /// Returns the namespace and the tokens of the prompt of the request with this number.
    pub(crate) fn prompt(&self, number: u64) -> (Namespace, Vec<TokenId>) {
        let num_tokens = self.num_prompt_tokens as usize;
        if self.content_ids.is_empty() {
            let mut namespace = [0; 32];
            namespace[..8].copy_from_slice(&(number + 1).to_le_bytes());
            return (Namespace(namespace), vec![0; num_tokens]);
        }
        let mut tokens = Vec::with_capacity(num_tokens);
        for &id in &self.content_ids {
            let end = (tokens.len() + TOKENS_PER_ID as usize).min(num_tokens);
            for word in 0..TOKENS_PER_ID.div_ceil(TOKENS_PER_WORD) {
                let word = content_word(id, word);
                let num_left = u32::try_from(end - tokens.len()).unwrap_or(u32::MAX);
                tokens.extend((0..TOKENS_PER_WORD.min(num_left)).map(|i| token_in(word, i)));
            }
        }
        (Namespace::default(), tokens)
    }
}

/// Returns the packed tokens `TOKENS_PER_WORD * word..` of the content `id`, first token highest,
/// so that words are ordered as their tokens are.
pub(crate) fn content_word(id: u64, word: u32) -> u64 {
    mix64(mix64(id) ^ u64::from(word)) >> (u64::BITS - TOKENS_PER_WORD * TOKEN_BITS)
}

/// Returns how many tokens two contents have in common at their start, as far as their first
/// words tell.
pub(crate) fn num_common_tokens(first_word: u64, other_word: u64) -> u32 {
    let num_unused_bits = u64::BITS - TOKENS_PER_WORD * TOKEN_BITS;
    ((first_word ^ other_word).leading_zeros() - num_unused_bits) / TOKEN_BITS
}

fn token_in(word: u64, index: u32) -> TokenId {
    let bits = word >> ((TOKENS_PER_WORD - 1 - index) * TOKEN_BITS);
    // At most 7.
    TokenId::from((bits & ((1 << TOKEN_BITS) - 1)) as u8)
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
    pub fn read(path: &Path) -> Result<Self, SimulateError> {
        let unreadable = |source| SimulateError::ReadTrace { path: path.to_owned(), source };
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
) -> Result<Vec<TraceRequest>, SimulateError> {
    let mut requests = Vec::new();
    for (number, line) in (1..).zip(reader.lines()) {
        let path = || path.to_owned();
        let line = line.map_err(|source| SimulateError::ReadTrace { path: path(), source })?;
        if line.trim().is_empty() {
            continue;
        }
        let request =
            format.request(line.trim(), number).map_err(|LineError { expected, found }| {
                SimulateError::TraceLine { path: path(), line: number, expected, found }
            })?;
        requests.extend(request);
    }
    requests.sort_by_key(|request| request.arrival);
    let Some(first) = requests.first() else {
        return Err(SimulateError::EmptyTrace { path: path.to_owned() });
    };
    let start = first.arrival;
    for request in &mut requests {
        request.arrival -= start;
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(content_ids: &[u64], num_prompt_tokens: u32) -> TraceRequest {
        TraceRequest {
            arrival: Duration::ZERO,
            num_prompt_tokens,
            num_output_tokens: 1,
            content_ids: content_ids.into(),
        }
    }

    #[test]
    fn equal_ids_at_equal_positions_give_equal_prefixes_and_others_do_not() {
        let (namespace, first) = request(&[7, 8], 1000).prompt(0);
        let (other_namespace, second) = request(&[7, 9], 600).prompt(1);
        assert_eq!((first.len(), second.len()), (1000, 600));
        assert_eq!(namespace, other_namespace);
        assert_eq!(first[..512], second[..512]);
        let num_equal = (512..600).take_while(|&i| first[i] == second[i]).count();
        let expected = num_common_tokens(content_word(8, 0), content_word(9, 0));
        assert_eq!(num_equal, expected as usize);
        assert!(first.iter().all(|&token| token < OUTPUT_TOKEN));
    }

    #[test]
    fn requests_without_shared_content_have_namespaces_of_their_own() {
        let (first, _) = request(&[], 3).prompt(0);
        let (second, tokens) = request(&[], 3).prompt(1);
        assert_ne!(first, second);
        assert_ne!(first, Namespace::default());
        assert_eq!(tokens.len(), 3);
    }

    #[test]
    fn words_are_ordered_as_their_tokens_are() {
        let words = [content_word(1, 0), content_word(2, 0)];
        let tokens = words.map(|word| (0..21).map(|i| token_in(word, i)).collect::<Vec<_>>());
        assert_eq!(words[0] < words[1], tokens[0] < tokens[1]);
        assert_eq!(num_common_tokens(words[0], words[0]), TOKENS_PER_WORD);
    }
}
