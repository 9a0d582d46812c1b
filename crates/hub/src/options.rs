//! Settings of where models are fetched from and kept, read from the environment.
//!
//! The variables are those of `huggingface_hub`, with the same defaults and precedence:
//!
//! | variable | meaning |
//! |---|---|
//! | `HF_HOME` | folder of everything cached; default `$XDG_CACHE_HOME/huggingface`, `~/.cache/huggingface` |
//! | `HF_HUB_CACHE` | folder of Hub repositories; default `$HF_HOME/hub` |
//! | `HF_ENDPOINT` | base address of the Hub; default `https://huggingface.co` |
//! | `HF_TOKEN` | access token; else the file `HF_TOKEN_PATH`, else the file `$HF_HOME/token` |
//! | `HF_HUB_OFFLINE` | `1`, `on`, `yes` or `true`: cache only, no network; also `TRANSFORMERS_OFFLINE` |
//! | `MINI_INFER_PIP` | the pip program to use instead of the first that is found |
//!
//! Proxies come from the usual `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`. An empty
//! variable counts as unset.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::error::HubError;

/// Where models are fetched from and kept.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// Folder of everything cached. Alias models from the Python index are in `mini-infer/` in it.
    pub home: PathBuf,
    /// Folder of Hub repositories in the standard layout.
    pub cache: PathBuf,
    /// Base address of the Hub.
    pub endpoint: Endpoint,
    /// Access token, sent to [`Self::endpoint`] and nowhere else.
    pub token: Option<Token>,
    /// Whether the network may be used.
    pub network: Network,
    /// Whether a model in the cache is used as it is.
    pub lookup: CacheLookup,
    /// Looks at the configuration of a checkpoint before its weights are fetched.
    pub check_config: Option<ConfigCheck>,
    /// The pip program, where the user names one.
    pub pip: Option<PathBuf>,
    /// How long the network may stay silent.
    pub timeouts: Timeouts,
    /// How often a failed transfer is repeated.
    pub retries: RetryPolicy,
}

/// Whether the network may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// It may.
    Online,
    /// Only what is in the cache is used.
    Offline,
}

/// Whether a Hub model that is complete in the cache is used as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheLookup {
    /// It is: starting needs no network, and a branch that has moved on is not noticed.
    PreferCached,
    /// The Hub is asked what the revision is; what has changed is fetched.
    AskHub,
}

/// Says of the bytes of a `config.json` why the caller cannot use such a model, if it cannot.
pub type ConfigCheck = fn(&[u8]) -> Result<(), String>;

/// How long the network may stay silent. There is no limit on a whole transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To find the host, and to connect to it.
    pub connect: Duration,
    /// Until the answer begins, and between two pieces of it.
    pub stall: Duration,
}

/// How often and after what pause a failed transfer is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Failures in a row, without a byte between them, after which it is given up; at least 1.
    pub max_failures: u32,
    /// Pause after the first failure; doubled after each further one.
    pub first_delay: Duration,
    /// Longest pause. A server that asks for a longer one is not waited for.
    pub max_delay: Duration,
}

/// An access token; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl HubOptions {
    /// Reads the environment of the process.
    ///
    /// # Errors
    ///
    /// [`HubError::BadVariable`] where a variable cannot be used, and [`HubError::Io`] where the
    /// token file is there but cannot be read.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_variables(&|name| env::var_os(name), env::home_dir().as_deref())
    }

    /// Reads variables from a function; `user_home` is the user's home folder.
    ///
    /// # Errors
    ///
    /// As [`Self::from_env`].
    pub fn from_variables(
        variable: &dyn Fn(&str) -> Option<OsString>,
        user_home: Option<&Path>,
    ) -> Result<Self, HubError> {
        let path = |name: &str| {
            variable(name).filter(|value| !value.is_empty()).map(|value| expand(value, user_home))
        };
        let home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|folder| folder.join("huggingface")))
            .or_else(|| user_home.map(|folder| folder.join(".cache").join("huggingface")))
            .ok_or_else(|| HubError::BadVariable {
                variable: "HF_HOME",
                problem: "is unset and the user has no home folder: set it".to_owned(),
            })?;
        let is_offline =
            |name| variable(name).is_some_and(|value| is_true(&value.to_string_lossy()));
        let network = match is_offline("HF_HUB_OFFLINE") || is_offline("TRANSFORMERS_OFFLINE") {
            true => Network::Offline,
            false => Network::Online,
        };
        Ok(Self {
            cache: path("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub")),
            endpoint: read_endpoint(variable)?,
            token: read_token(variable, path("HF_TOKEN_PATH"), &home)?,
            network,
            lookup: CacheLookup::PreferCached,
            check_config: None,
            pip: path("MINI_INFER_PIP"),
            timeouts: Timeouts::default(),
            retries: RetryPolicy::default(),
            home,
        })
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), stall: Duration::from_secs(30) }
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_failures: 5,
            first_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(60),
        }
    }
}

impl Token {
    /// Takes a token, without the white space around it; `None` where it cannot be sent in a header.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_sendable = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_sendable.then(|| Self(text.to_owned()))
    }

    /// Returns the token itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

/// Replaces a leading `~` by the user's home folder, as `huggingface_hub` does.
fn expand(value: OsString, user_home: Option<&Path>) -> PathBuf {
    let path = PathBuf::from(value);
    match (path.strip_prefix("~"), user_home) {
        (Ok(rest), Some(user_home)) => user_home.join(rest),
        _ => path,
    }
}

fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

fn read_endpoint(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Endpoint, HubError> {
    let value = variable("HF_ENDPOINT").unwrap_or_default();
    if value.is_empty() {
        return Ok(Endpoint::default());
    }
    let value = value.to_string_lossy();
    Endpoint::parse(&value).ok_or_else(|| HubError::BadVariable {
        variable: "HF_ENDPOINT",
        problem: format!("is {value:?}, expected an address that starts with https:// or http://"),
    })
}

fn read_token(
    variable: &dyn Fn(&str) -> Option<OsString>,
    token_path: Option<PathBuf>,
    home: &Path,
) -> Result<Option<Token>, HubError> {
    let checked = |name, text: &str| match Token::new(text) {
        Some(token) => Ok(Some(token)),
        None if text.trim().is_empty() => Ok(None),
        None => Err(HubError::BadVariable {
            variable: name,
            problem: "holds characters no token has: check what was pasted".to_owned(),
        }),
    };
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        let value = variable(name).unwrap_or_default();
        if let Some(token) = checked(name, &value.to_string_lossy())? {
            return Ok(Some(token));
        }
    }
    let path = token_path.unwrap_or_else(|| home.join("token"));
    match fs::read_to_string(&path) {
        Ok(text) => checked("HF_TOKEN_PATH", &text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(HubError::io("read", &path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_pairs(pairs: &[(&str, &str)]) -> Result<HubOptions, HubError> {
        let variable = |name: &str| {
            pairs.iter().find(|pair| pair.0 == name).map(|pair| OsString::from(pair.1))
        };
        HubOptions::from_variables(&variable, Some(Path::new("/home/user")))
    }

    #[test]
    fn defaults_are_those_of_huggingface_hub() {
        let options = from_pairs(&[]).unwrap();
        assert_eq!(options.home, Path::new("/home/user/.cache/huggingface"));
        assert_eq!(options.cache, Path::new("/home/user/.cache/huggingface/hub"));
        assert_eq!(options.endpoint.as_str(), "https://huggingface.co");
        assert_eq!(options.token, None);
        assert_eq!(options.network, Network::Online);
    }

    #[test]
    fn variables_override_and_empty_ones_do_not() {
        let options = from_pairs(&[
            ("HF_HOME", "~/models"),
            ("HF_HUB_CACHE", ""),
            ("HF_ENDPOINT", "http://mirror.example/hf/"),
            ("HF_TOKEN", " hf_secret\n"),
            ("HF_HUB_OFFLINE", "Yes"),
        ])
        .unwrap();
        assert_eq!(options.home, Path::new("/home/user/models"));
        assert_eq!(options.cache, Path::new("/home/user/models/hub"));
        assert_eq!(options.endpoint.as_str(), "http://mirror.example/hf");
        assert_eq!(options.token, Token::new("hf_secret"));
        assert_eq!(options.network, Network::Offline);
    }

    #[test]
    fn token_is_read_from_the_file_in_the_home_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), "hf_from_file\n").unwrap();
        let options = from_pairs(&[("HF_HOME", folder.path().to_str().unwrap())]).unwrap();
        assert_eq!(options.token, Token::new("hf_from_file"));
    }

    #[test]
    fn unusable_variables_are_named() {
        for (name, value) in [("HF_ENDPOINT", "huggingface.co"), ("HF_TOKEN", "two words")] {
            let error = from_pairs(&[(name, value)]).unwrap_err();
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }

    #[test]
    fn debug_output_hides_the_token() {
        let options = from_pairs(&[("HF_TOKEN", "hf_secret")]).unwrap();
        assert!(!format!("{options:?}").contains("hf_secret"));
    }
}
