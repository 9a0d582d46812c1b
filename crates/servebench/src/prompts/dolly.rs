//! Real prompts: databricks-dolly-15k, 15,011 instructions that people wrote (CC BY-SA 3.0,
//! Databricks). Downloaded once (13 MB) into a cache folder, whole or not at all.

use super::prompt_file::FilePrompt;
use crate::client::{http_client, root_cause};
use crate::error::ServebenchError;
use futures_util::StreamExt;
use serde::Deserialize;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file, in the cache and in its repository.
const FILE_NAME: &str = "databricks-dolly-15k.jsonl";

/// Where the file is, below the address of the Hub.
const REPOSITORY_PATH: &str = "datasets/databricks/databricks-dolly-15k/resolve/main";

/// Longest wait for a connection or for more bytes.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Row {
    instruction: String,
    #[serde(default)]
    context: String,
}

/// Where the prompts are kept and where they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DollySource {
    /// Folder of what is downloaded.
    folder: PathBuf,
    /// Address of the Hub.
    endpoint: String,
}

impl DollySource {
    /// Reads `SERVEBENCH_CACHE` (else `~/.cache/servebench`) and `HF_ENDPOINT` (else the Hub).
    pub(super) fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let value = |name| variable(name).filter(|value| !value.is_empty());
        let folder = value("SERVEBENCH_CACHE").map_or_else(
            || PathBuf::from(value("HOME").unwrap_or_default()).join(".cache/servebench"),
            PathBuf::from,
        );
        let endpoint = value("HF_ENDPOINT")
            .map_or_else(|| "https://huggingface.co".to_owned(), |url| url.display().to_string());
        Self { folder, endpoint: endpoint.trim_end_matches('/').to_owned() }
    }

    /// Returns all prompts of at most `max_words` words, downloading them if need be.
    ///
    /// # Errors
    /// When the file is neither in the cache nor to be had, or holds no such prompt.
    pub(super) fn prompts(&self, max_words: u32) -> Result<Vec<FilePrompt>, ServebenchError> {
        let path = self.folder.join(FILE_NAME);
        if !path.is_file() {
            self.download(&path)?;
        }
        let text = fs::read_to_string(&path).map_err(|source| file_error("read", &path, source))?;
        let mut prompts = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let row: Row = serde_json::from_str(text).map_err(|error| ServebenchError::Line {
                path: path.clone(),
                line,
                message: format!("not a line of this data set ({error}); delete the file"),
            })?;
            let parts = [row.instruction.trim(), row.context.trim()];
            let text = parts.join("\n\n").trim().to_owned();
            if text.split_whitespace().count() <= max_words as usize && !text.is_empty() {
                prompts.push(FilePrompt::of_text(text, line));
            }
        }
        if prompts.is_empty() {
            return Err(ServebenchError::Usage {
                flag: "--input-len".to_owned(),
                message: format!("no prompt of dolly has at most {max_words} words; allow more"),
            });
        }
        Ok(prompts)
    }

    fn download(&self, path: &Path) -> Result<(), ServebenchError> {
        let url = format!("{}/{REPOSITORY_PATH}/{FILE_NAME}", self.endpoint);
        // A thread of its own, because the caller's may already run asynchronous code.
        std::thread::scope(|scope| {
            let download = scope.spawn(|| -> Result<(), ServebenchError> {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|source| file_error("write", path, source))?;
                runtime.block_on(fetch(&url, path))
            });
            download.join().expect("a download does not panic")
        })
    }
}

/// Fetches a file under another name, and renames it when it is whole.
async fn fetch(url: &str, path: &Path) -> Result<(), ServebenchError> {
    let unreachable = |error: reqwest::Error| {
        let error = error.without_url();
        ServebenchError::Server {
            url: url.to_owned(),
            message: format!(
                "cannot be downloaded ({}); use --prompts synthetic, or put the file \
                 at {}",
                root_cause(&error),
                path.display()
            ),
        }
    };
    let client = http_client()
        .connect_timeout(TIMEOUT)
        .read_timeout(TIMEOUT)
        .build()
        .map_err(unreachable)?;
    let response = client.get(url).send().await.and_then(reqwest::Response::error_for_status);
    let mut bytes = response.map_err(unreachable)?.bytes_stream();
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|source| file_error("create", folder, source))?;
    let partial = path.with_extension(format!("{}.part", std::process::id()));
    let mut file =
        fs::File::create(&partial).map_err(|source| file_error("write", &partial, source))?;
    while let Some(part) = bytes.next().await {
        let written = part.map_err(unreachable).and_then(|part| {
            file.write_all(&part).map_err(|source| file_error("write", &partial, source))
        });
        if let Err(error) = written {
            // What is left of it is of no use, and no worse error than this one.
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
    }
    fs::rename(&partial, path).map_err(|source| file_error("write", path, source))
}

fn file_error(action: &'static str, path: &Path, source: std::io::Error) -> ServebenchError {
    ServebenchError::File { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    const ROWS: &str = "{\"instruction\": \"Say it. \", \"context\": \"\", \"response\": \"x\"}\n\
        {\"instruction\": \"Sum up\", \"context\": \" a b c \", \"category\": \"y\"}\n";

    /// Answers one request with a response, and returns the address and the request's first line.
    fn serve_once(response: String) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let request = lines.next().unwrap().unwrap();
            while !lines.next().unwrap().unwrap().is_empty() {}
            stream.write_all(response.as_bytes()).unwrap();
            request
        };
        (url, std::thread::spawn(serve))
    }

    fn ok(num_bytes: usize) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {num_bytes}\r\nConnection: close\r\n\r\n{ROWS}")
    }

    fn source(folder: &Path, url: String) -> DollySource {
        DollySource { folder: folder.join("cache"), endpoint: url }
    }

    #[test]
    fn it_is_downloaded_once_and_bounded_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let (url, request) = serve_once(ok(ROWS.len()));
        let source = source(folder.path(), url);
        let texts = |max_words| -> Vec<String> {
            source.prompts(max_words).unwrap().into_iter().map(|prompt| prompt.text).collect()
        };
        assert_eq!(texts(5), ["Say it.", "Sum up\n\na b c"]);
        let expected = format!("GET /{REPOSITORY_PATH}/{FILE_NAME} HTTP/1.1");
        assert_eq!(request.join().unwrap(), expected);
        // The server is gone: this one is from the cache.
        assert_eq!(texts(4), ["Say it."]);
        assert!(source.prompts(1).unwrap_err().to_string().contains("at most 1 words"));
    }

    #[test]
    fn a_download_that_fails_leaves_nothing_and_says_what_to_do() {
        for response in [ok(ROWS.len() + 1), "HTTP/1.1 404 Gone\r\n\r\n".to_owned()] {
            let folder = tempfile::tempdir().unwrap();
            let (url, request) = serve_once(response);
            let error = source(folder.path(), url).prompts(5).unwrap_err().to_string();
            assert!(error.contains("use --prompts synthetic, or put the file at"), "{error}");
            request.join().unwrap();
            let left = fs::read_dir(folder.path().join("cache"));
            assert_eq!(left.map_or(0, Iterator::count), 0);
        }
    }

    #[test]
    fn variables_say_where_it_is() {
        let at = |pairs: &[(&str, &str)]| {
            let value = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1);
            DollySource::from_variables(|name| value(name).map(OsString::from))
        };
        let source = |folder: &str, endpoint: &str| DollySource {
            folder: folder.into(),
            endpoint: endpoint.to_owned(),
        };
        let hub = "https://huggingface.co";
        assert_eq!(at(&[("HOME", "/h")]), source("/h/.cache/servebench", hub));
        let given = [("SERVEBENCH_CACHE", "/c"), ("HF_ENDPOINT", "http://mirror/")];
        assert_eq!(at(&given), source("/c", "http://mirror"));
    }
}
