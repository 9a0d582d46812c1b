//! What one request makes of every kind of answer.

use crate::scripted_server::{
    ScriptedServer, Step, answer, chunk, end_of_body, last_events, stream_head, word,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use servebench::client::{
    Connections, Exchange, ExchangeClock, KeepAlive, Message, RequestSpec, send,
};
use servebench::results::{RunConfig, TokenSource};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

const PATIENT: Duration = Duration::from_secs(30);
const IMPATIENT: Duration = Duration::from_millis(100);

fn connections(url: &str, timeout: Duration) -> (RequestSpec, Connections) {
    let config = RunConfig { url: url.to_owned(), ..RunConfig::default() };
    let spec = RequestSpec::new(&config, None);
    let connections = Connections::new(&spec, timeout, KeepAlive::Reuse).unwrap();
    (spec, connections)
}

/// Sends one request to a server that answers as `steps` say.
async fn ask(steps: Vec<Step>, timeout: Duration) -> Exchange {
    let server = ScriptedServer::start(move |_, _| steps.clone()).await;
    let (spec, connections) = connections(&server.url, timeout);
    let body = spec.body(&[Message::user("hello")], None);
    send(&connections, body, ExchangeClock::alone(), &AtomicU64::new(0)).await
}

/// Checks that an answer is refused, and how the error begins.
async fn check_refused(steps: Vec<Step>, timeout: Duration, error: &str) {
    let exchange = ask(steps, timeout).await;
    let got = exchange.result.error.unwrap_or_else(|| panic!("no error, expected {error:?}"));
    assert!(got.starts_with(error), "expected {error:?}, got {got:?}");
    assert!(!exchange.result.ok);
    assert_eq!(exchange.result.e2e, None, "a failed request has no latency");
}

/// Returns a streamed answer of these events.
fn stream(events: &[&str]) -> Vec<Step> {
    let mut bytes = stream_head();
    bytes.extend(events.iter().flat_map(chunk));
    bytes.extend(end_of_body());
    vec![Step::Send(bytes)]
}

fn document(status: &str, headers: &str, body: &str) -> Vec<Step> {
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}");
    vec![Step::Send(text.into_bytes())]
}

#[tokio::test]
async fn each_kind_of_failure_has_its_own_error() {
    let json = "content-type: application/json\r\n";
    let one = word("one");
    let cases = [
        (document("500 No", json, r#"{"error":{"message":"boom"}}"#), "HTTP 500: boom"),
        (document("429 No", "", "slow down"), "HTTP 429: slow down"),
        (document("307 No", "location: http://x/\r\n", ""), "HTTP 307: redirected to http://x/"),
        (document("200 OK", json, r#"{"choices":[]}"#), "not a stream: "),
        (document("200 OK", json, r#"{"error":"busy"}"#), "stream error: busy"),
        (stream(&[&one, "data: {\"choices\":\n\n"]), "malformed chunk: {\"choices\":"),
        (stream(&[&one, "data: nonsense\n\n"]), "malformed chunk: nonsense"),
        (stream(&[&one, "data: {\"error\":{\"message\":\"oom\"}}\n\n"]), "stream error: oom"),
        (stream(&[&one, "error: {\"message\":\"oom\"}\n\n"]), "stream error: oom"),
        (stream(&[&one]), "incomplete stream: "),
        (stream(&[]), "incomplete stream: "),
        (stream(&["data: [DONE]\n\n"]), "empty response: "),
        (
            vec![Step::Send([stream_head(), chunk(&one)].concat()), Step::Close],
            "connection dropped mid-stream: ",
        ),
        (vec![Step::Close], "connection error: "),
        (vec![Step::Send(b"garbage\r\n\r\n".to_vec()), Step::Close], "connection error: "),
    ];
    for (steps, error) in cases {
        check_refused(steps, PATIENT, error).await;
    }
}

#[tokio::test]
async fn silence_is_a_timeout_before_and_within_an_answer() {
    check_refused(vec![Step::Hold], IMPATIENT, "timeout: no answer for 0.1 s").await;
    let begun = Step::Send([stream_head(), chunk(word("one"))].concat());
    check_refused(vec![begun, Step::Hold], IMPATIENT, "timeout: no further bytes for 0.1 s").await;
}

#[tokio::test]
async fn comments_keep_a_slow_answer_alive() {
    let mut steps = vec![Step::Send(stream_head())];
    for _ in 0..5 {
        steps.push(Step::Serve(IMPATIENT / 2));
        steps.push(Step::Send(chunk(": still here\n\n")));
    }
    let last = [word("one"), last_events(1)].concat();
    steps.push(Step::Send([chunk(last), end_of_body()].concat()));
    let exchange = ask(steps, IMPATIENT).await;
    assert_eq!(exchange.result.error, None);
    assert!(exchange.result.ttft.unwrap() >= 0.25, "comments are no tokens");
}

#[tokio::test]
async fn a_port_where_nothing_listens_is_a_connect_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let (spec, connections) = connections(&url, PATIENT);
    let body = spec.body(&[Message::user("hello")], None);
    let exchange = send(&connections, body, ExchangeClock::alone(), &AtomicU64::new(0)).await;
    let error = exchange.result.error.unwrap();
    assert!(error.starts_with("connect error: "), "{error}");
}

#[tokio::test]
async fn an_answer_is_read_with_all_that_the_server_tells() {
    let events = [
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n",
        &word("one"),
        &word(" two"),
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\
         \"timings\":{\"prompt_ms\":0.001,\"predicted_ms\":4.5}}\r\n\r\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5,\
         \"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n",
    ];
    let exchange = ask(stream(&events), PATIENT).await;
    let result = exchange.result;
    assert_eq!(result.error, None);
    assert_eq!((exchange.answer.as_str(), exchange.reasoning.as_str()), ("one two", "hm"));
    assert_eq!((result.chunk_times.len(), result.reasoning_chunks), (3, 1));
    assert_eq!(result.ttft, Some(result.chunk_times[0]));
    assert_eq!(result.answer_start, Some(result.chunk_times[1]));
    assert_eq!((result.prompt_tokens, result.output_tokens), (Some(9), 5));
    assert_eq!((result.cached_tokens, result.token_source), (Some(8), TokenSource::Usage));
    assert_eq!((result.server_prefill_ms, result.server_decode_ms), (Some(0.001), Some(4.5)));
    let overhead = result.ttft.unwrap() * 1e3 - 0.001;
    assert!((result.queue_network_overhead_ms.unwrap() - overhead).abs() < 1e-9);
    assert_eq!(result.finish_reason.as_deref(), Some("stop"));
    assert_eq!(result.send_delay, None, "nobody said when it was due");
}

#[tokio::test]
async fn without_usage_pieces_of_text_are_counted_and_that_is_said() {
    let finished = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    // No [DONE]: a finish reason ends a stream as well.
    let result = ask(stream(&[&word("a"), &word("b"), finished]), PATIENT).await.result;
    assert_eq!(result.error, None);
    assert_eq!((result.output_tokens, result.token_source), (2, TokenSource::Chunks));
}

#[tokio::test]
async fn bytes_that_arrive_one_by_one_make_the_same_answer() {
    let events = [word("é"), ": ping\r\n".to_owned(), word("😀"), last_events(2)].concat();
    let mut steps = vec![Step::Send(stream_head())];
    for byte in events.as_bytes() {
        steps.push(Step::Send(chunk([*byte])));
    }
    steps.push(Step::Send(end_of_body()));
    let exchange = ask(steps, PATIENT).await;
    assert_eq!((exchange.result.error, exchange.answer.as_str()), (None, "é😀"));
}

#[tokio::test]
async fn a_body_that_never_ends_does_not_hold_up_a_finished_answer() {
    let whole = [stream_head(), chunk(word("one")), chunk(last_events(1))].concat();
    let start = Instant::now();
    let exchange = ask(vec![Step::Send(whole), Step::Hold], PATIENT).await;
    assert!(start.elapsed() < PATIENT / 2, "waited {:?}", start.elapsed());
    assert_eq!(exchange.result.error, None);
    let e2e = exchange.result.e2e.unwrap();
    assert!(e2e < 1.0, "the wait for the end of the body is no latency, but e2e is {e2e}");
}

#[tokio::test]
async fn latency_counts_from_when_a_request_was_due() {
    let server = ScriptedServer::start(|_, _| answer(&["one", "two"])).await;
    let (spec, connections) = connections(&server.url, PATIENT);
    let origin = Instant::now() - Duration::from_secs(5);
    let clock = ExchangeClock { origin, due: Some(origin + Duration::from_secs(2)) };
    let num_pieces = AtomicU64::new(0);
    let body = spec.body(&[Message::user("hello")], None);
    let result = send(&connections, body, clock, &num_pieces).await.result;
    assert_eq!((result.start, num_pieces.load(Ordering::Relaxed)), (2.0, 2));
    for time in [result.send_delay, result.ttft, result.e2e] {
        assert!(time.unwrap() >= 3.0, "{result:?}");
    }
}

#[tokio::test]
async fn no_bytes_of_a_server_end_the_program() {
    let seed = std::env::var("SERVEBENCH_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("SERVEBENCH_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let good = [
        stream_head(),
        chunk(word("one")),
        chunk("data: {\"usage\":{\"completion_tokens\":1},\"timings\":{\"prompt_ms\":1}}\n\n"),
        chunk(last_events(1)),
        end_of_body(),
    ]
    .concat();
    for _ in 0..300 {
        let mut bytes = good.clone();
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..3) {
                0 => bytes[at] = random.random(),
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, random.random()),
            }
        }
        let exchange = ask(vec![Step::Send(bytes), Step::Close], PATIENT).await;
        assert_eq!(exchange.result.ok, exchange.result.error.is_none());
    }
}
