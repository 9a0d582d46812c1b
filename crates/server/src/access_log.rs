//! A line per request, without any of its text.
//!
//! Lines are `key=value` pairs whose names and order stay. They are written on a thread of their
//! own: where what takes them is slower than the requests, lines are left out and counted, and no
//! request waits.

use crate::request_record::RequestRecord;
use axum::http::{Method, StatusCode};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Lines that wait to be written at most.
const MAX_WAITING_LINES: usize = 4096;

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All of it was handed to the connection.
    Whole,
    /// The connection was lost before.
    Cut,
}

/// What a line tells.
pub(crate) struct AccessLine<'a> {
    /// Who asked for what.
    pub(crate) record: &'a RequestRecord,
    /// The request's method.
    pub(crate) method: &'a Method,
    /// The route that answered, as it is declared; `None` where there is none.
    pub(crate) route: Option<&'a str>,
    /// The answer's status.
    pub(crate) status: StatusCode,
    /// How the answer ended.
    pub(crate) ending: Ending,
}

impl fmt::Display for AccessLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress = self.record.progress();
        write!(f, "access id={} client={}", self.record.id(), self.record.address())?;
        let route = self.route.unwrap_or("-");
        write!(f, " method={} route={route} status={}", self.method, self.status.as_u16())?;
        f.write_str(" model=")?;
        write_value(f, progress.model.as_deref().unwrap_or("-"))?;
        write!(
            f,
            " prompt_tokens={} output_tokens={} ms={} end={}",
            progress.num_prompt_tokens,
            progress.num_output_tokens,
            self.record.arrived_at().elapsed().as_millis(),
            match self.ending {
                Ending::Whole => "whole",
                Ending::Cut => "cut",
            }
        )
    }
}

/// Writes a value that others chose: quoted where it could be mistaken for something else.
fn write_value(f: &mut fmt::Formatter<'_>, value: &str) -> fmt::Result {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@+".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        return f.write_str(value);
    }
    write!(f, "{value:?}")
}

/// Takes lines for a thread that writes them.
#[derive(Debug)]
pub(crate) struct AccessLog {
    lines: SyncSender<String>,
    num_left_out: Arc<AtomicU64>,
}

impl AccessLog {
    /// Starts the thread, which ends when this is dropped.
    ///
    /// # Errors
    /// Returns the system's error when the thread cannot be started.
    pub(crate) fn start(write: impl FnMut(&str) + Send + 'static) -> io::Result<Self> {
        let (lines, receiver) = sync_channel(MAX_WAITING_LINES);
        let num_left_out = Arc::<AtomicU64>::default();
        let left_out = Arc::clone(&num_left_out);
        let run = move || write_lines(&receiver, &left_out, write);
        thread::Builder::new().name("access-log".to_owned()).spawn(run)?;
        Ok(Self { lines, num_left_out })
    }

    /// Hands `line` to the thread, if there is room.
    pub(crate) fn write(&self, line: &AccessLine<'_>) {
        if self.lines.try_send(line.to_string()).is_err() {
            self.num_left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_lines(lines: &Receiver<String>, left_out: &AtomicU64, mut write: impl FnMut(&str)) {
    while let Ok(line) = lines.recv() {
        let num_left_out = left_out.swap(0, Ordering::Relaxed);
        if num_left_out > 0 {
            write(&format!("access left_out={num_left_out}"));
        }
        write(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_context::TraceContext;
    use axum::http::HeaderMap;
    use std::net::Ipv4Addr;
    use std::sync::mpsc::channel;

    fn record() -> RequestRecord {
        let trace = TraceContext::new(&HeaderMap::new());
        RequestRecord::new("req-1".to_owned(), Ipv4Addr::LOCALHOST.into(), trace)
    }

    fn line<'a>(record: &'a RequestRecord, route: Option<&'a str>) -> AccessLine<'a> {
        let (method, status) = (&Method::POST, StatusCode::OK);
        AccessLine { record, method, route, status, ending: Ending::Whole }
    }

    #[test]
    fn a_line_has_the_same_fields_in_the_same_order() {
        let record = record();
        record.note_model("a model=\"x\"\n");
        record.note_prompt(7);
        let text = line(&record, Some("/v1/completions")).to_string();
        let (head, ms) = text.split_once(" ms=").unwrap();
        let expected = "access id=req-1 client=127.0.0.1 method=POST route=/v1/completions \
                        status=200 model=\"a model=\\\"x\\\"\\n\" prompt_tokens=7 output_tokens=0";
        assert_eq!(head, expected);
        assert!(ms.ends_with(" end=whole"), "{ms}");
        assert!(line(&record, None).to_string().contains(" route=- "));
    }

    #[test]
    fn lines_that_nobody_takes_are_counted_and_hold_up_nobody() {
        let (go, gate) = channel::<()>();
        let (written, seen) = channel();
        let log = AccessLog::start(move |line| {
            let _ = gate.recv();
            written.send(line.to_owned()).unwrap();
        })
        .unwrap();
        let record = record();
        for _ in 0..MAX_WAITING_LINES + 10 {
            log.write(&line(&record, None));
        }
        drop(go);
        drop(log);
        let lines: Vec<String> = seen.iter().collect();
        let left_out: u64 = lines
            .iter()
            .filter_map(|line| line.strip_prefix("access left_out="))
            .map(|n| n.parse::<u64>().unwrap())
            .sum();
        let num_whole = lines.iter().filter(|line| line.starts_with("access id=")).count();
        assert_eq!(num_whole as u64 + left_out, MAX_WAITING_LINES as u64 + 10);
        assert!(left_out >= 9, "{left_out}");
    }
}
