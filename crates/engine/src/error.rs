//! Why a request is not accepted.

use mini_infer_core::{ParamError, RequestId, SamplingParams, TokenId};
use std::fmt;

/// A request that was refused; nothing of it stays in the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// No capacity: as many requests wait as may. Try again later.
    QueueFull {
        /// Most requests that may wait.
        max_queue_len: u32,
    },
    /// The prompt has no tokens.
    EmptyPrompt,
    /// The prompt leaves no room for an output token, where one is wanted.
    PromptTooLong {
        /// Tokens in the prompt.
        num_prompt_tokens: usize,
        /// Most tokens of one sequence, prompt and output together.
        max_model_len: u32,
    },
    /// The prompt has a token that the model does not know.
    TokenOutOfVocab {
        /// The token.
        token: TokenId,
        /// Number of tokens in the vocabulary.
        vocab_size: usize,
    },
    /// A bias is given to a token that the model does not know.
    BiasOutOfVocab {
        /// The token.
        token: TokenId,
        /// Number of tokens in the vocabulary.
        vocab_size: usize,
    },
    /// A sampling parameter is out of range.
    Params(ParamError),
    /// The beams of a search could never run side by side.
    TooManyBeams {
        /// Beams asked for.
        width: u32,
        /// Most sequences that run at once.
        max_num_seqs: u32,
    },
    /// The vocabulary is too small to continue a beam search with different tokens.
    BeamsExceedVocab {
        /// Different tokens that must be able to follow: one for each beam, and the stop tokens.
        num_candidates: usize,
        /// Number of tokens in the vocabulary.
        vocab_size: usize,
    },
    /// A beam search ranks sequences by what the model would write, which a constraint changes.
    ConstrainedBeams,
    /// More alternatives to the prompt's tokens are asked for than are told.
    TooManyPromptLogprobs {
        /// Alternatives asked for.
        num_top: u32,
    },
    /// A report on the prompt is made by sampled sequences only.
    ReportWithBeams,
    /// Neither tokens nor a report on the prompt are wanted, or several sequences without tokens.
    NoOutput,
    /// A request with this id is still alive: a bug of the caller.
    DuplicateId {
        /// The id given twice.
        id: RequestId,
    },
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { max_queue_len } => {
                write!(f, "{max_queue_len} requests are waiting already, try again later")
            }
            Self::EmptyPrompt => write!(f, "the prompt must have at least one token"),
            Self::PromptTooLong { num_prompt_tokens, max_model_len } => write!(
                f,
                "the prompt has {num_prompt_tokens} tokens and must leave room for an output \
                 token within the limit of {max_model_len}"
            ),
            Self::TokenOutOfVocab { token, vocab_size } => {
                write!(f, "prompt token {token} is outside the vocabulary of {vocab_size} tokens")
            }
            Self::BiasOutOfVocab { token, vocab_size } => {
                write!(f, "token {token} is outside the vocabulary of {vocab_size} tokens")
            }
            Self::Params(_) => write!(f, "a sampling parameter is out of range"),
            Self::TooManyBeams { width, max_num_seqs } => write!(
                f,
                "a search with {width} beams needs as many running sequences, but there are at \
                 most {max_num_seqs}"
            ),
            Self::BeamsExceedVocab { num_candidates, vocab_size } => write!(
                f,
                "the search needs {num_candidates} different tokens to go on with, but the \
                 vocabulary has {vocab_size}"
            ),
            Self::ConstrainedBeams => {
                write!(f, "the output of a beam search cannot be constrained")
            }
            Self::TooManyPromptLogprobs { num_top } => write!(
                f,
                "at most {} alternatives to each token of a prompt can be told, not {num_top}",
                SamplingParams::MAX_LOGPROBS
            ),
            Self::ReportWithBeams => {
                write!(f, "a beam search tells nothing about the prompt's tokens")
            }
            Self::NoOutput => {
                write!(f, "no output goes with one sequence and a report on the prompt only")
            }
            Self::DuplicateId { id } => write!(f, "request {id} is submitted twice"),
        }
    }
}

impl std::error::Error for SubmitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Params(error) => Some(error),
            Self::QueueFull { .. }
            | Self::EmptyPrompt
            | Self::PromptTooLong { .. }
            | Self::TokenOutOfVocab { .. }
            | Self::BiasOutOfVocab { .. }
            | Self::TooManyBeams { .. }
            | Self::BeamsExceedVocab { .. }
            | Self::ConstrainedBeams
            | Self::TooManyPromptLogprobs { .. }
            | Self::ReportWithBeams
            | Self::NoOutput
            | Self::DuplicateId { .. } => None,
        }
    }
}
