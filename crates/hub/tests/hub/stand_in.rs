//! A stand-in for the Hugging Face Hub on the loopback interface.
//!
//! Behaves like the real one where this crate looks: the list of files with checksums, redirects of
//! large files to storage on another host (here another port) with `X-Linked-Etag`,
//! `X-Linked-Size` and `X-Repo-Commit`, small files served directly, ranges, error codes in
//! `X-Error-Code`. Faults are queued by the test and each is spent on one request. Every request
//! is recorded.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mini_infer_hub::{
    CacheLookup, HubOptions, Network, Progress, ProgressEvent, RetryPolicy, Timeouts, Token,
};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Commit of the stand-in's repository unless a test moves it.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The stand-in's repository.
pub(crate) const REPO: &str = "org/model";

/// The two hosts of the stand-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Hub,
    Storage,
}

/// What goes wrong with one request.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// Nothing: the fault queued next is for a later request.
    Pass,
    /// The connection ends after this many bytes of the body.
    DropAfter(usize),
    /// The body stops after this many bytes and the connection stays open.
    StallAfter(usize),
    /// Another status, with these headers.
    Status(u16, &'static [(&'static str, &'static str)]),
    /// Every byte of the body is another one.
    Corrupt,
}

/// A request the stand-in received.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) host: Host,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) range: Option<String>,
}

/// What the stand-in holds and how it behaves.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) commit: &'static str,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// Whether the list of files has lengths and checksums.
    pub(crate) lists_checksums: bool,
    /// Whether storage honours `Range`.
    pub(crate) honours_ranges: bool,
    /// Checksum announced instead of the true one.
    pub(crate) announced: Option<String>,
    /// Beginnings of the Hub's paths that are answered with a redirect, and what comes instead.
    pub(crate) redirects: BTreeMap<String, String>,
    pub(crate) faults: VecDeque<(Host, Fault)>,
    pub(crate) seen: Vec<Seen>,
}

/// A running stand-in; it ends with the test process.
#[derive(Debug, Clone)]
pub(crate) struct StandIn {
    pub(crate) endpoint: String,
    pub(crate) storage: String,
    state: Arc<Mutex<State>>,
}

struct Request {
    seen: Seen,
    start: Option<usize>,
}

struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl StandIn {
    /// Starts a stand-in whose repository holds these files.
    pub(crate) fn start(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.to_vec()));
        let state = Arc::new(Mutex::new(State {
            commit: COMMIT,
            files: files.collect(),
            lists_checksums: true,
            honours_ranges: true,
            announced: None,
            redirects: BTreeMap::new(),
            faults: VecDeque::new(),
            seen: Vec::new(),
        }));
        let storage = TcpListener::bind("127.0.0.1:0").unwrap();
        let storage_url = format!("http://{}", storage.local_addr().unwrap());
        let hub = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", hub.local_addr().unwrap());
        serve(storage, Host::Storage, state.clone(), String::new());
        serve(hub, Host::Hub, state.clone(), storage_url.clone());
        Self { endpoint, storage: storage_url, state }
    }

    /// Changes what the stand-in holds or does.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// Queues a fault for the next request to a host.
    pub(crate) fn fail_next(&self, host: Host, fault: Fault) {
        self.change(|state| state.faults.push_back((host, fault)));
    }

    /// Returns the requests so far to a host.
    pub(crate) fn seen(&self, host: Host) -> Vec<Seen> {
        let state = self.state.lock().unwrap();
        state.seen.iter().filter(|seen| seen.host == host).cloned().collect()
    }

    /// Returns options that use this stand-in, with a cache in `home` and no patience.
    pub(crate) fn options(&self, home: &Path) -> HubOptions {
        let mut options = offline_options(home);
        options.endpoint = mini_infer_hub::Endpoint::parse(&self.endpoint).unwrap();
        options.network = Network::Online;
        options
    }
}

/// Returns options that use no network.
pub(crate) fn offline_options(home: &Path) -> HubOptions {
    let mut options = HubOptions::from_variables(&|_| None, Some(home)).unwrap();
    options.home = home.to_owned();
    options.cache = home.join("hub");
    options.network = Network::Offline;
    options.lookup = CacheLookup::PreferCached;
    options.token = Token::new("hf_secret");
    options.pip = Some(home.join("no-pip-here"));
    options.timeouts =
        Timeouts { connect: Duration::from_secs(30), stall: Duration::from_secs(30) };
    options.retries = RetryPolicy {
        max_failures: 3,
        first_delay: Duration::from_millis(1),
        max_delay: Duration::from_secs(2),
    };
    options
}

/// Returns `num_bytes` bytes without a short period.
pub(crate) fn content(num_bytes: usize) -> Vec<u8> {
    (0..num_bytes).map(|i| (i * i / 7 + i / 251).to_le_bytes()[0]).collect()
}

/// Returns the SHA-256 in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns Git's blob id in hexadecimal.
pub(crate) fn git_blob(bytes: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", bytes.len()).as_bytes());
    hash.update(bytes);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A [`Progress`] that keeps the events as text.
#[derive(Debug, Default)]
pub(crate) struct Events(pub(crate) Vec<String>);

impl Progress for Events {
    fn report(&mut self, event: ProgressEvent<'_>) {
        self.0.push(format!("{event:?}"));
    }
}

fn is_large(path: &str) -> bool {
    path.ends_with(".gguf") || path.ends_with(".safetensors")
}

fn serve(listener: TcpListener, host: Host, state: Arc<Mutex<State>>, storage: String) {
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let (state, storage) = (state.clone(), storage.clone());
            // A client that went away is the client's own business.
            thread::spawn(move || drop(answer(connection, host, &state, &storage)));
        }
    });
}

fn answer(
    mut connection: TcpStream,
    host: Host,
    state: &Mutex<State>,
    storage: &str,
) -> std::io::Result<()> {
    let request = read_request(&connection, host)?;
    let (reply, fault) = {
        let mut state = state.lock().unwrap();
        state.seen.push(request.seen.clone());
        let place = state.faults.iter().position(|fault| fault.0 == host);
        let fault = place.and_then(|i| state.faults.remove(i)).map(|fault| fault.1);
        let reply = match host {
            Host::Hub => hub_reply(&state, &request, storage),
            Host::Storage => storage_reply(&state, &request),
        };
        (reply, fault)
    };
    send(&mut connection, &request, reply, fault)
}

fn send(
    connection: &mut TcpStream,
    request: &Request,
    mut reply: Reply,
    fault: Option<Fault>,
) -> std::io::Result<()> {
    let mut num_sent = reply.body.len();
    match fault {
        Some(Fault::DropAfter(num_bytes) | Fault::StallAfter(num_bytes)) => num_sent = num_bytes,
        Some(Fault::Status(status, headers)) => {
            let headers = headers.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
            reply = Reply { status, headers: headers.collect(), body: Vec::new() };
            num_sent = 0;
        }
        Some(Fault::Corrupt) => reply.body.iter_mut().for_each(|byte| *byte ^= 1),
        Some(Fault::Pass) | None => {}
    }
    let mut head = format!("HTTP/1.1 {} x\r\nConnection: close\r\n", reply.status);
    head += &format!("Content-Length: {}\r\n", reply.body.len());
    for (name, value) in reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    connection.write_all(format!("{head}\r\n").as_bytes())?;
    if request.seen.method != "HEAD" {
        connection.write_all(&reply.body[..num_sent])?;
    }
    if matches!(fault, Some(Fault::StallAfter(_))) {
        // Returns when the client gives up.
        connection.read(&mut [0]).map(drop)?;
    }
    Ok(())
}

fn read_request(connection: &TcpStream, host: Host) -> std::io::Result<Request> {
    let mut lines = BufReader::new(connection).lines();
    let line = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = line.split(' ').map(ToOwned::to_owned);
    let mut seen = Seen {
        host,
        method: words.next().unwrap_or_default(),
        path: words.next().unwrap_or_default(),
        authorization: None,
        range: None,
    };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        let value = Some(value.trim().to_owned());
        match name.to_ascii_lowercase().as_str() {
            "authorization" => seen.authorization = value,
            "range" => seen.range = value,
            _ => {}
        }
    }
    let range = seen.range.as_ref().and_then(|range| range.strip_prefix("bytes="));
    let start = range.and_then(|range| range.strip_suffix('-')?.parse().ok());
    Ok(Request { seen, start })
}

fn hub_reply(state: &State, request: &Request, storage: &str) -> Reply {
    let path = &request.seen.path;
    if let Some((from, to)) = state.redirects.iter().find(|(from, _)| path.starts_with(*from)) {
        let location = ("Location".to_owned(), path.replacen(from, to, 1));
        return Reply { status: 307, headers: vec![location], body: vec![] };
    }
    if path.starts_with(&format!("/api/models/{REPO}/revision/")) {
        return Reply { status: 200, headers: vec![], body: listing(state).into_bytes() };
    }
    let file = path
        .strip_prefix(&format!("/{REPO}/resolve/"))
        .or_else(|| path.strip_prefix("/api/resolve-cache/"))
        .and_then(|rest| rest.split_once('/'))
        .map(|(_, file)| file);
    let Some((file, bytes)) = file.and_then(|file| state.files.get_key_value(file)) else {
        return refusal(
            404,
            if path.starts_with("/api/") { "RepoNotFound" } else { "EntryNotFound" },
        );
    };
    let commit = ("X-Repo-Commit".to_owned(), state.commit.to_owned());
    if is_large(file) {
        let etag = state.announced.clone().unwrap_or_else(|| sha256(bytes));
        let headers = vec![
            commit,
            ("X-Linked-Etag".to_owned(), format!("\"{etag}\"")),
            ("X-Linked-Size".to_owned(), bytes.len().to_string()),
            ("Location".to_owned(), format!("{storage}/{file}?signature=abc")),
        ];
        return Reply { status: 302, headers, body: b"Found. Redirecting".to_vec() };
    }
    if !path.starts_with("/api/") {
        let location = format!("/api/resolve-cache/{}/{file}", state.commit);
        let headers = vec![commit, ("Location".to_owned(), location)];
        return Reply { status: 307, headers, body: b"Temporary Redirect".to_vec() };
    }
    let headers = vec![("ETag".to_owned(), format!("\"{}\"", git_blob(bytes)))];
    Reply { status: 200, headers, body: bytes.clone() }
}

fn storage_reply(state: &State, request: &Request) -> Reply {
    let path = request.seen.path.split('?').next().unwrap_or_default();
    let Some(bytes) = state.files.get(path.trim_start_matches('/')) else {
        return Reply { status: 403, headers: vec![], body: vec![] };
    };
    // Storage has ETags of its own, which say nothing about the content.
    let mut headers =
        vec![("ETag".to_owned(), "\"d41d8cd98f00b204e9800998ecf8427e-2\"".to_owned())];
    match request.start.filter(|_| state.honours_ranges) {
        Some(start) if start >= bytes.len() => Reply { status: 416, headers, body: vec![] },
        Some(start) => {
            let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
            headers.push(("Content-Range".to_owned(), range));
            Reply { status: 206, headers, body: bytes[start..].to_vec() }
        }
        None => Reply { status: 200, headers, body: bytes.clone() },
    }
}

fn listing(state: &State) -> String {
    let file = |(path, bytes): (&String, &Vec<u8>)| {
        let (blob, num_bytes) = (git_blob(bytes), bytes.len());
        let lfs = format!(r#","lfs":{{"sha256":"{}","size":{num_bytes}}}"#, sha256(bytes));
        let lfs = if is_large(path) { lfs } else { String::new() };
        if !state.lists_checksums {
            return format!(r#"{{"rfilename":"{path}"}}"#);
        }
        format!(r#"{{"rfilename":"{path}","size":{num_bytes},"blobId":"{blob}"{lfs}}}"#)
    };
    let files: Vec<String> = state.files.iter().map(file).collect();
    format!(r#"{{"id":"{REPO}","sha":"{}","siblings":[{}]}}"#, state.commit, files.join(","))
}

fn refusal(status: u16, code: &str) -> Reply {
    let headers = vec![("X-Error-Code".to_owned(), code.to_owned())];
    Reply { status, headers, body: b"{}".to_vec() }
}
