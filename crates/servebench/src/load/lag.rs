//! How long an event that is ready waits in the client, and how busy the client is.
//!
//! A thread outside the runtime sends the time into it; how old the time is when the runtime gets
//! to it is what every arriving byte waits too. A high lag means that the client, not the server,
//! sets the latencies.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const INTERVAL: Duration = Duration::from_millis(10);
/// Linux reports processor time in these on every architecture.
const CLOCK_STEPS_PER_S: f64 = 100.0;

/// Samples the lag until it is stopped.
#[derive(Debug)]
pub(super) struct LagMonitor {
    is_stopped: Arc<AtomicBool>,
    lags: JoinHandle<Vec<f64>>,
    started: Instant,
    cpu_at_start: Option<f64>,
}

/// What a monitor saw.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClientLoad {
    /// 99th percentile of the lag, in milliseconds.
    pub(super) lag_p99_ms: Option<f64>,
    /// Processor time for each second and each thread of the runtime.
    pub(super) cpu_share: Option<f64>,
}

impl LagMonitor {
    /// Starts to sample the runtime that this is called in.
    pub(super) fn start() -> std::io::Result<Self> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (sender, mut receiver) = mpsc::unbounded_channel::<Instant>();
        let stop = Arc::clone(&is_stopped);
        thread::Builder::new().name("lag".to_owned()).spawn(move || {
            while sender.send(Instant::now()).is_ok() && !stop.load(Ordering::Relaxed) {
                thread::sleep(INTERVAL);
            }
        })?;
        let lags = tokio::spawn(async move {
            let mut lags = Vec::new();
            while let Some(sent) = receiver.recv().await {
                lags.push(sent.elapsed().as_secs_f64() * 1e3);
            }
            lags
        });
        Ok(Self { is_stopped, lags, started: Instant::now(), cpu_at_start: process_cpu_s() })
    }

    /// Stops and returns what was seen.
    pub(super) async fn stop(self) -> ClientLoad {
        let elapsed = self.started.elapsed().as_secs_f64();
        let num_threads = tokio::runtime::Handle::current().metrics().num_workers();
        let cpu_share = self.cpu_at_start.zip(process_cpu_s()).map(|(start, end)| {
            #[expect(clippy::cast_precision_loss, reason = "a number of threads is small")]
            let num_threads = num_threads.max(1) as f64;
            (end - start) / elapsed.max(1e-9) / num_threads
        });
        self.is_stopped.store(true, Ordering::Relaxed);
        let lags = self.lags.await.unwrap_or_default();
        ClientLoad { lag_p99_ms: percentile_99(lags), cpu_share }
    }
}

/// Returns the sample that 99 % of the samples do not exceed.
fn percentile_99(mut samples: Vec<f64>) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    let rank = (samples.len() * 99).div_ceil(100);
    samples.get(rank.checked_sub(1)?).copied()
}

/// Returns the processor time that this process has used, in seconds; `None` where the system does
/// not tell.
fn process_cpu_s() -> Option<f64> {
    parse_stat(&fs::read_to_string("/proc/self/stat").ok()?)
}

fn parse_stat(stat: &str) -> Option<f64> {
    // The second field, a name in brackets, may hold spaces and brackets itself.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11);
    let user: f64 = times.next()?.parse().ok()?;
    let system: f64 = times.next()?.parse().ok()?;
    Some((user + system) / CLOCK_STEPS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_is_a_sample() {
        assert_eq!(percentile_99(vec![]), None);
        assert_eq!(percentile_99(vec![3.0]), Some(3.0));
        let hundred = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile_99(hundred), Some(99.0));
    }

    #[test]
    fn processor_time_is_user_and_system_time() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 9 9 20 0 3 0 1 1";
        assert_eq!(parse_stat(stat), Some(3.0));
        assert_eq!(parse_stat("7 (a"), None);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_blocked_runtime_lags() {
        let monitor = LagMonitor::start().unwrap();
        // A future that holds its worker for 60 ms, as one that does too much does.
        let block = tokio::spawn(async {
            let end = Instant::now() + Duration::from_millis(60);
            while Instant::now() < end {
                std::hint::spin_loop();
            }
        });
        block.await.unwrap();
        let load = monitor.stop().await;
        assert!(load.lag_p99_ms.unwrap() > 20.0, "{load:?}");
    }
}
