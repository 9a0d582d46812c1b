//! Why a command failed.

use crate::config::ConfigError;
use mini_infer_hub::HubError;
use mini_infer_kernels::IsaError;
use mini_infer_model::ModelError;
use mini_infer_server::{ApiKeyError, TlsError};
use mini_infer_simulate::SimulateError;
use mini_infer_text::{TemplateError, TokenizerError};
use mini_infer_tier::TierError;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a command failed; what went wrong below is the source.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// Flags do not fit together, the model, or the machine.
    Config(ConfigError),
    /// The model could not be found or fetched.
    Hub(HubError),
    /// The model is not on this disk, where `info` looks.
    NotFetched { model: String },
    /// The model cannot be read or is not supported.
    Model(ModelError),
    /// The model's tokenizer cannot be built.
    Tokenizer(TokenizerError),
    /// The model's chat template does not compile.
    ChatTemplate(TemplateError),
    /// The file of `--chat-template` cannot be read.
    ChatTemplateFile { path: PathBuf, source: io::Error },
    /// An adapter of `--lora` cannot be used.
    Adapter { name: String, message: String },
    /// An API key of the command line cannot be used.
    ApiKey(ApiKeyError),
    /// The file of `--api-key-file` cannot be used.
    ApiKeyFile { path: PathBuf, source: Box<dyn Error + Send + Sync> },
    /// The files of `--tls-cert` and `--tls-key` cannot be used.
    Tls(TlsError),
    /// `--swap-space` holds nothing.
    SwapSpace(TierError),
    /// The folder of `--kv-tier-dir` cannot be used.
    FileTier(TierError),
    /// `MINI_INFER_ISA` asks for what is not there.
    Isa(IsaError),
    /// The engine refuses its numbers.
    Engine(mini_infer_engine::ConfigError),
    /// The first step on the model failed.
    WarmUp(mini_infer_core::ExecutorError),
    /// The simulation cannot run.
    Simulate(SimulateError),
    /// `--kv-bytes-per-token` is 0.
    NoBytesPerToken,
    /// The system refuses what a server needs.
    System { what: String, source: io::Error },
}

impl CommandError {
    /// Names what the system refused.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::System { what, source }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Hub(error) => error.fmt(f),
            Self::NotFetched { model } => {
                write!(f, "{model} is not in the cache; `mini-infer pull {model}` fetches it")
            }
            Self::Model(error) => error.fmt(f),
            Self::Tokenizer(error) => write!(f, "the model's tokenizer: {error}"),
            Self::ChatTemplate(error) => error.fmt(f),
            Self::ChatTemplateFile { path, .. } => {
                write!(f, "--chat-template {} cannot be read", path.display())
            }
            Self::Adapter { name, message } => write!(f, "--lora {name}: {message}"),
            Self::ApiKey(error) => write!(f, "--api-key, --management-key: {error}"),
            Self::ApiKeyFile { path, .. } => {
                write!(f, "--api-key-file {} cannot be used", path.display())
            }
            Self::Tls(error) => write!(f, "--tls-cert, --tls-key: {error}"),
            Self::SwapSpace(error) => write!(f, "--swap-space: {error}"),
            Self::FileTier(error) => write!(f, "--kv-tier-dir: {error}"),
            Self::Isa(error) => error.fmt(f),
            Self::Engine(error) => error.fmt(f),
            Self::WarmUp(error) => write!(f, "warm-up: {error}"),
            Self::Simulate(error) => error.fmt(f),
            Self::NoBytesPerToken => write!(f, "--kv-bytes-per-token must be at least 1 byte"),
            Self::System { what, .. } => write!(f, "cannot {what}"),
        }
    }
}

impl Error for CommandError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // These print as the error below them, so what follows is that one's source.
            Self::Config(error) => error.source(),
            Self::Hub(error) => error.source(),
            Self::Model(error) => error.source(),
            Self::Tokenizer(error) => error.source(),
            Self::ChatTemplate(error) => error.source(),
            Self::SwapSpace(error) | Self::FileTier(error) => error.source(),
            Self::Isa(error) => error.source(),
            Self::Engine(error) => error.source(),
            Self::WarmUp(error) => error.source(),
            Self::Simulate(error) => error.source(),
            Self::ApiKey(error) => error.source(),
            Self::Tls(error) => error.source(),
            Self::ApiKeyFile { source, .. } => Some(source.as_ref()),
            Self::NotFetched { .. } | Self::NoBytesPerToken | Self::Adapter { .. } => None,
            Self::ChatTemplateFile { source, .. } | Self::System { source, .. } => Some(source),
        }
    }
}

impl From<ConfigError> for CommandError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<HubError> for CommandError {
    fn from(error: HubError) -> Self {
        Self::Hub(error)
    }
}

impl From<ModelError> for CommandError {
    fn from(error: ModelError) -> Self {
        Self::Model(error)
    }
}
