//! How the mock server behaves.

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How the mock server behaves. The documentation of each field is also the help of its flag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct MockConfig {
    /// Time to the first token, in milliseconds
    #[arg(long, default_value_t = 100.0, value_name = "MS")]
    pub ttft_ms: f64,
    /// Time from each token to the next, in milliseconds
    #[arg(long, default_value_t = 20.0, value_name = "MS")]
    pub itl_ms: f64,
    /// Tokens in each piece of the stream; a piece waits for all of its tokens
    #[arg(long, default_value_t = 1, value_name = "TOKENS")]
    pub tokens_per_chunk: u32,
    /// Extra time for each other request that is being served when a request begins, as a share:
    /// 0.1 makes everything 10 % slower
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub slowdown: f64,
    /// Requests served at once; others wait, first come first served [default: no limit]
    #[arg(long, value_name = "REQUESTS")]
    pub slots: Option<usize>,
    /// Requests that may wait; one more is answered 429 [default: no limit]
    #[arg(long, value_name = "REQUESTS")]
    pub max_queue: Option<usize>,
    /// Extra time to the first token for each word of the prompt, in milliseconds
    #[arg(long, default_value_t = 0.0, value_name = "MS")]
    pub prefill_ms_per_token: f64,
    /// Words of the prompt and tokens of the output together; one more is answered 400 with
    /// context_length_exceeded [default: no limit]
    #[arg(long, value_name = "TOKENS")]
    pub context_limit: Option<u64>,
    /// Moves each piece by up to this share of a gap, at random, either way: 0 to 0.5
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub jitter: f64,
    /// Seed of what is random
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Prompt tokens that `usage` says were cached, at most the prompt's [default: it says nothing]
    #[arg(long, value_name = "TOKENS")]
    pub cached_tokens: Option<u64>,
    /// First tokens of a chat's output that are reasoning
    #[arg(long, default_value_t = 0, value_name = "TOKENS")]
    pub reasoning_tokens: u32,
    /// Whether to send `usage` when asked for it
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "true|false")]
    pub send_usage: bool,
    /// Breaks the connection when the next token after this many is due
    #[arg(long, value_name = "TOKENS")]
    pub drop_after: Option<u32>,
    /// Sends nothing more after this many tokens, and keeps the connection
    #[arg(long, value_name = "TOKENS")]
    pub stall_after: Option<u32>,
    /// Sends a piece that is no JSON before the next token after this many
    #[arg(long, value_name = "TOKENS")]
    pub malformed_after: Option<u32>,
    /// Ends streams without a reason and without `[DONE]`
    #[arg(long)]
    pub no_done: bool,
    /// Share of requests that are answered 500, chosen at random
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub fail_rate: f64,
    /// Name of the model
    #[arg(long, default_value = "mock-model")]
    pub model: String,
}

impl Default for MockConfig {
    fn default() -> Self {
        Self {
            ttft_ms: 100.0,
            itl_ms: 20.0,
            tokens_per_chunk: 1,
            slowdown: 0.0,
            slots: None,
            max_queue: None,
            prefill_ms_per_token: 0.0,
            context_limit: None,
            jitter: 0.0,
            seed: 0,
            cached_tokens: None,
            reasoning_tokens: 0,
            send_usage: true,
            drop_after: None,
            stall_after: None,
            malformed_after: None,
            no_done: false,
            fail_rate: 0.0,
            model: "mock-model".to_owned(),
        }
    }
}

/// A setting that is out of range.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigError {
    /// Its name.
    pub setting: &'static str,
    /// Its value.
    pub value: f64,
    /// What it may be.
    pub expected: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, expected {}", self.setting, self.value, self.expected)
    }
}

impl std::error::Error for ConfigError {}

/// Longest time that a setting can ask for: a day, in milliseconds.
const MAX_MS: f64 = 86_400_000.0;

impl MockConfig {
    /// Checks that all settings are in range.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is = |setting, value, expected, in_range: bool| {
            if in_range { Ok(()) } else { Err(ConfigError { setting, value, expected }) }
        };
        let times = [
            ("ttft_ms", self.ttft_ms),
            ("itl_ms", self.itl_ms),
            ("prefill_ms_per_token", self.prefill_ms_per_token),
        ];
        for (setting, value) in times {
            is(setting, value, "0 to a day", (0.0..=MAX_MS).contains(&value))?;
        }
        let slowdown = self.slowdown;
        is("slowdown", slowdown, "0 to 1000", (0.0..=1000.0).contains(&slowdown))?;
        is("jitter", self.jitter, "0 to 0.5", (0.0..=0.5).contains(&self.jitter))?;
        is("fail_rate", self.fail_rate, "0 to 1", (0.0..=1.0).contains(&self.fail_rate))?;
        is("tokens_per_chunk", 0.0, "1 or more", self.tokens_per_chunk > 0)?;
        is("slots", 0.0, "1 or more", self.slots != Some(0))
    }
}
