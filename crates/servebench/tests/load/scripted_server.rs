//! A server on a socket that reads HTTP requests and answers each with the bytes a test says.

use serde_json::Value;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

/// One part of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Sends bytes.
    Send(Vec<u8>),
    /// Serves for a time.
    Serve(Duration),
    /// Waits until so many requests wait here.
    Meet(Arc<Barrier>),
    /// Keeps the connection and sends nothing more.
    Hold,
    /// Closes the connection.
    Close,
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) body: Value,
    pub(crate) connection: usize,
    pub(crate) arrived: Instant,
    pub(crate) closes: bool,
}

#[derive(Debug, Default)]
struct Record {
    seen: Vec<Seen>,
    num_open: usize,
    max_open: usize,
}

/// The server; it ends with the value.
pub(crate) struct ScriptedServer {
    pub(crate) url: String,
    record: Arc<Mutex<Record>>,
    accepting: JoinHandle<()>,
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

type Script = dyn Fn(usize, &Value) -> Vec<Step> + Send + Sync;

impl ScriptedServer {
    /// Starts a server that answers the i-th POST as `script` says.
    pub(crate) async fn start(
        script: impl Fn(usize, &Value) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let record = Arc::new(Mutex::new(Record::default()));
        let shared = Arc::clone(&record);
        let script: Arc<Script> = Arc::new(script);
        let accepting = tokio::spawn(async move {
            let mut connection = 0;
            while let Ok((socket, _)) = listener.accept().await {
                connection += 1;
                let (record, script) = (Arc::clone(&shared), Arc::clone(&script));
                tokio::spawn(async move {
                    // The client may go away at any time.
                    let _ = serve(socket, connection, &record, script.as_ref()).await;
                });
            }
        });
        Self { url, record, accepting }
    }

    /// Returns the POSTs that arrived, in order.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.record.lock().unwrap().seen.clone()
    }

    /// Returns the most POSTs that were open at one time.
    pub(crate) fn max_open(&self) -> usize {
        self.record.lock().unwrap().max_open
    }
}

async fn serve(
    mut socket: TcpStream,
    connection: usize,
    record: &Mutex<Record>,
    script: &Script,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let Some(request) = read_request(&mut socket, &mut buffer).await? else { return Ok(()) };
        if !request.head.starts_with("POST ") {
            socket.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await?;
            continue;
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let number = {
            let mut record = record.lock().unwrap();
            record.num_open += 1;
            record.max_open = record.max_open.max(record.num_open);
            let closes = request.head.to_lowercase().contains("connection: close");
            let body = body.clone();
            record.seen.push(Seen { body, connection, arrived: Instant::now(), closes });
            record.seen.len() - 1
        };
        let steps = script(number, &body);
        // Counted as ended before the client can know it, so that its next request is not too many.
        let last_send = steps.iter().rposition(|step| matches!(step, Step::Send(_)));
        for (i, step) in steps.into_iter().enumerate() {
            if Some(i) == last_send {
                record.lock().unwrap().num_open -= 1;
            }
            match step {
                Step::Send(bytes) => socket.write_all(&bytes).await?,
                Step::Serve(time) => tokio::time::sleep(time).await,
                Step::Meet(barrier) => {
                    barrier.wait().await;
                }
                Step::Hold => std::future::pending().await,
                Step::Close => return Ok(()),
            }
        }
    }
}

struct RawRequest {
    head: String,
    body: Vec<u8>,
}

async fn read_request(
    socket: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<RawRequest>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            let length = head
                .lines()
                .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok())
                .unwrap_or(0);
            if buffer.len() >= end + 4 + length {
                let body = buffer[end + 4..end + 4 + length].to_vec();
                buffer.drain(..end + 4 + length);
                return Ok(Some(RawRequest { head, body }));
            }
        }
        if socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// Returns the head of a streamed answer.
pub(crate) fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        .to_vec()
}

/// Returns bytes as one chunk of a body.
pub(crate) fn chunk(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Returns the end of a body.
pub(crate) fn end_of_body() -> Vec<u8> {
    b"0\r\n\r\n".to_vec()
}

/// Returns an event with one word of an answer.
pub(crate) fn word(text: &str) -> String {
    let event = serde_json::json!({"choices": [{"delta": {"content": text}}]});
    format!("data: {event}\n\n")
}

/// Returns the event that says how many tokens there were, and the end of the stream.
pub(crate) fn last_events(num_tokens: usize) -> String {
    let event = serde_json::json!({
        "choices": [{"delta": {}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": num_tokens},
    });
    format!("data: {event}\n\ndata: [DONE]\n\n")
}

/// Returns a whole answer of these words.
pub(crate) fn answer(words: &[&str]) -> Vec<Step> {
    let mut bytes = stream_head();
    for text in words {
        bytes.extend(chunk(word(text)));
    }
    bytes.extend(chunk(last_events(words.len())));
    bytes.extend(end_of_body());
    vec![Step::Send(bytes)]
}
