//! Why a simulation could not run.

use crate::allocator::Allocator;
use mini_infer_trace::TraceError;
use std::fmt;

/// Why a simulation could not run.
#[derive(Debug)]
pub enum SimulateError {
    /// The trace cannot be read.
    Trace(TraceError),
    /// No request is short enough for `max_model_len`.
    NothingFits {
        /// The longest sequence allowed, in tokens.
        max_model_len: u32,
        /// The shortest sequence of the trace, in tokens.
        num_tokens_of_shortest: u32,
    },
    /// There is no allocator of this name.
    UnknownAllocator {
        /// The name given.
        got: String,
    },
    /// The KV memory cannot hold the longest sequence as this allocator places it.
    MemoryTooSmall {
        /// The allocator.
        allocator: Allocator,
        /// Size of the KV memory, in tokens.
        kv_tokens: u64,
        /// The least that works, in tokens.
        least: u64,
    },
    /// A number is outside what the simulation can do.
    OutOfRange {
        /// What the number is.
        what: &'static str,
        /// The value given.
        got: String,
        /// What would work.
        expected: String,
    },
    /// The engine refuses its numbers.
    Engine(mini_infer_engine::ConfigError),
    /// The figure cannot be drawn.
    Plot {
        /// What the drawing library says.
        message: String,
    },
}

impl fmt::Display for SimulateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(error) => error.fmt(f),
            Self::NothingFits { max_model_len, num_tokens_of_shortest } => write!(
                f,
                "no request of the trace fits in --max-model-len {max_model_len}; the shortest has \
                 {num_tokens_of_shortest} tokens"
            ),
            Self::UnknownAllocator { got } => {
                let names: Vec<String> =
                    Allocator::all().iter().map(Allocator::to_string).collect();
                write!(f, "there is no allocator `{got}`; there are {} and all", names.join(", "))
            }
            Self::MemoryTooSmall { allocator, kv_tokens, least } => write!(
                f,
                "{allocator} needs KV memory for at least {least} tokens to place the longest \
                 sequence, and there is room for {kv_tokens}; raise --kv-tokens or lower \
                 --max-model-len"
            ),
            Self::OutOfRange { what, got, expected } => {
                write!(f, "{what} is {got}; expected {expected}")
            }
            Self::Engine(error) => error.fmt(f),
            Self::Plot { message } => write!(f, "the figure cannot be drawn: {message}"),
        }
    }
}

impl std::error::Error for SimulateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // These print as the error below them, so what follows is that one's source.
            Self::Trace(error) => error.source(),
            Self::Engine(error) => error.source(),
            Self::NothingFits { .. }
            | Self::UnknownAllocator { .. }
            | Self::MemoryTooSmall { .. }
            | Self::OutOfRange { .. }
            | Self::Plot { .. } => None,
        }
    }
}

impl From<TraceError> for SimulateError {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}
