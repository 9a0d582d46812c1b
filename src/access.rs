//! Who may reach the server, from flags and files.

use crate::cli::HttpArgs;
use crate::error::CommandError;
use mini_infer_server::{AccessConfig, ApiKeys, KeyScope, TlsFiles, TlsIdentity};
use std::error::Error;
use std::fs;

/// Reads the keys and collects what else says who may reach the server.
///
/// # Errors
/// When a key cannot be sent in a header, or a file of keys cannot be read or holds none.
pub(crate) fn config(http: &HttpArgs) -> Result<AccessConfig, CommandError> {
    let mut keys = ApiKeys::default();
    let flags =
        [(&http.api_key, KeyScope::Inference), (&http.management_key, KeyScope::Management)];
    for (flag, scope) in flags {
        // An empty variable of the environment means the same as none.
        for key in flag.iter().filter(|key| !key.is_empty()) {
            keys.add(key, scope).map_err(CommandError::ApiKey)?;
        }
    }
    for path in &http.api_key_file {
        let refuse = |source: Box<dyn Error + Send + Sync>| CommandError::ApiKeyFile {
            path: path.clone(),
            source,
        };
        let text = fs::read_to_string(path).map_err(|error| refuse(error.into()))?;
        keys.add_lines(&text).map_err(|error| refuse(error.into()))?;
    }
    Ok(AccessConfig {
        keys,
        allowed_hosts: http.allowed_host.clone(),
        cors_origins: http.cors_origin.clone(),
    })
}

/// Reads the certificate and its key, where flags name them.
///
/// # Errors
/// When a file cannot be read, holds something else, or the two do not belong together.
pub(crate) fn tls(http: &HttpArgs) -> Result<Option<TlsIdentity>, CommandError> {
    let (Some(certificates), Some(key)) = (&http.tls_cert, &http.tls_key) else {
        return Ok(None);
    };
    let files = TlsFiles { certificates: certificates.clone(), key: key.clone() };
    TlsIdentity::load(files).map(Some).map_err(CommandError::Tls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn access(flags: &[&str]) -> Result<AccessConfig, CommandError> {
        let arguments = ["mini-infer", "serve"].iter().chain(flags);
        let Command::Serve(serve) = Cli::parse_from(arguments).command else {
            panic!("`serve` was asked for");
        };
        config(&serve.http)
    }

    #[test]
    fn keys_come_from_flags_and_files() {
        assert!(access(&["--api-key", ""]).unwrap().keys.is_empty());
        assert!(!access(&["--api-key", "one,two"]).unwrap().keys.is_empty());
        assert!(!access(&["--management-key", "root"]).unwrap().keys.is_empty());
        let file = std::env::temp_dir().join(format!("mini-infer-keys-{}", std::process::id()));
        fs::write(&file, "# clients\none\nroot management\n").unwrap();
        let from_file = access(&["--api-key-file", file.to_str().unwrap()]);
        fs::write(&file, "# nobody\n").unwrap();
        let from_empty_file = access(&["--api-key-file", file.to_str().unwrap()]);
        fs::remove_file(&file).unwrap();
        assert!(!from_file.unwrap().keys.is_empty());
        for error in [from_empty_file, access(&["--api-key-file", "no-such-file"])] {
            let error = error.unwrap_err();
            assert!(error.to_string().starts_with("--api-key-file "), "{error}");
            assert!(error.source().is_some());
        }
        let error = access(&["--api-key", "two words"]).unwrap_err().to_string();
        assert!(error.starts_with("--api-key") && !error.contains("two words"), "{error}");
    }

    #[test]
    fn origins_are_checked_where_they_are_read() {
        let origins = ["--cors-origin", "https://chat.example", "--cors-origin", "*"];
        assert_eq!(access(&origins).unwrap().cors_origins.len(), 2);
        let flags = ["mini-infer", "serve", "--cors-origin", "chat.example"];
        let error = Cli::try_parse_from(flags).unwrap_err().to_string();
        assert!(error.contains("is not an origin"), "{error}");
    }
}
