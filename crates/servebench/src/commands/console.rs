//! What a user sees of a benchmark that runs, and what a Ctrl-C does to it.
//!
//! A bar on standard error while a level runs, where that is a terminal; a line on standard output
//! when it has ended. With a file to write, it is written after each level.

use crate::capacity::passes;
use crate::error::ServebenchError;
use crate::load::{LevelPlan, Observer, Progress, StopHandle};
use crate::output;
use crate::results::{Environment, LevelResult, RunResult};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Zoned;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// What a shell says of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Shows a benchmark that runs.
pub(crate) struct Console {
    bar: ProgressBar,
    /// Where the run is written after each level.
    out: Option<PathBuf>,
    /// Share of requests that must be good for a level to pass, where levels pass or fail.
    target: Option<f64>,
    num_requests: Option<usize>,
    duration: Option<Duration>,
}

impl Console {
    /// Shows a benchmark whose run goes to `out`.
    pub(crate) fn new(out: Option<&Path>) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        Self { bar, out: out.map(Path::to_owned), target: None, num_requests: None, duration: None }
    }

    /// Says of each level whether it passes.
    pub(crate) fn with_target(self, target: f64) -> Self {
        Self { target: Some(target), ..self }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn print(&self, line: &str) {
        self.bar.suspend(|| output::line(line));
    }
}

impl Observer for Console {
    fn warning(&mut self, message: &str) {
        self.bar.suspend(|| eprintln!("warning: {message}"));
    }

    fn warming_up(&mut self, environment: &Environment, num_warm_up: usize) {
        if let Some(engine) = &environment.engine {
            let version = environment.engine_version.as_deref().unwrap_or_default();
            self.print(format!("server: {engine} {version}").trim_end());
        }
        if num_warm_up > 0 {
            self.bar.set_style(style("{spinner} {msg}"));
            self.bar.set_message(format!("warming up with {num_warm_up} requests"));
            self.bar.enable_steady_tick(Duration::from_millis(200));
        }
    }

    fn level_started(&mut self, plan: &LevelPlan) {
        self.bar.disable_steady_tick();
        self.bar.reset();
        self.bar.set_style(style("{prefix:>10} [{bar:24}] {msg}"));
        let repeat = match plan.num_repeats {
            1 => String::new(),
            num_repeats => format!(" {}/{num_repeats}", plan.repeat),
        };
        self.bar.set_prefix(format!("{}{repeat}", plan.label));
        // One step of the bar is a request, or a millisecond where requests have no number.
        let length = match (plan.num_requests, plan.duration) {
            (Some(num_requests), _) => num_requests as u64,
            (None, Some(duration)) => whole_ms(duration),
            (None, None) => 0,
        };
        self.bar.set_length(length);
        (self.num_requests, self.duration) = (plan.num_requests, plan.duration);
    }

    fn progress(&mut self, progress: &Progress) {
        let elapsed = progress.elapsed.as_secs_f64();
        let (position, done) = match (self.num_requests, self.duration) {
            (None, Some(duration)) => (
                whole_ms(progress.elapsed.min(duration)),
                format!(
                    "{:.0}/{:.0} s",
                    elapsed.min(duration.as_secs_f64()),
                    duration.as_secs_f64()
                ),
            ),
            (Some(num_requests), _) => {
                (progress.num_ended as u64, format!("{}/{num_requests}", progress.num_ended))
            }
            (None, None) => (0, progress.num_ended.to_string()),
        };
        #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
        let speed = progress.num_pieces as f64 / elapsed.max(1e-3);
        let failed = match progress.num_failed {
            0 => String::new(),
            num_failed => format!(", {num_failed} failed"),
        };
        self.bar.set_message(format!(
            "{done}, {speed:.0} tok/s, {} in flight{failed}",
            progress.num_in_flight
        ));
        self.bar.set_position(position);
    }

    fn level_ended(&mut self, run: &RunResult) {
        self.bar.set_message("");
        if let Some(level) = run.levels.last() {
            self.print(&level_line(level, self.target));
            for (error, count) in most_common_errors(level) {
                self.print(&format!("{:>12}  {count} x {error}", ""));
            }
        }
        if let Some(out) = &self.out
            && let Err(error) = run.write(out)
        {
            // The measurement goes on: the run is written again at its end, which decides.
            self.warning(&error.to_string());
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("the templates of this file are well-formed")
        .progress_chars("=> ")
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a level in one line.
fn level_line(level: &LevelResult, target: Option<f64>) -> String {
    let summary = &level.summary;
    let ttft = summary.ttft.p50.map_or("-".to_owned(), |ttft| format!("{:.0} ms", ttft * 1e3));
    let in_slo = summary
        .slo_attainment
        .map_or(String::new(), |share| format!(", {:.0}% in SLO", share * 100.0));
    let stopped = level
        .num_interrupted
        .map_or(String::new(), |number| format!(", stopped with {number} in flight"));
    let verdict = match target {
        Some(target) if passes(level, target) => "  -> pass",
        Some(_) => "  -> FAIL",
        None => "",
    };
    format!(
        "{:>12}  {} ok, {} failed, {:.1} tok/s, TTFT p50 {ttft}{in_slo}{stopped}{verdict}",
        level.label(),
        summary.completed,
        summary.failed,
        summary.output_throughput,
    )
}

/// Returns the errors of a level, most common first, one example of each kind.
fn most_common_errors(level: &LevelResult) -> Vec<(&str, usize)> {
    let kind = |error: &str| error.split(':').next().unwrap_or_default().to_owned();
    let mut kinds: Vec<(String, &str, usize)> = Vec::new();
    for error in level.requests.iter().filter_map(|request| request.error.as_deref()) {
        match kinds.iter_mut().find(|(known, ..)| *known == kind(error)) {
            Some((.., count)) => *count += 1,
            None => kinds.push((kind(error), error, 1)),
        }
    }
    kinds.sort_by_key(|(.., count)| std::cmp::Reverse(*count));
    kinds.into_iter().map(|(_, error, count)| (error, count)).collect()
}

/// Makes Ctrl-C stop a benchmark; a second one ends the program. To be called inside a runtime.
pub(crate) fn stop_on_ctrl_c() -> StopHandle {
    let stop = StopHandle::default();
    let handle = stop.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_err() {
            // Without a handler Ctrl-C ends the program, as it does any other.
            return;
        }
        eprintln!("\nstopping; what was measured is kept (Ctrl-C again to end at once)");
        handle.stop();
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(i32::from(INTERRUPTED));
        }
    });
    stop
}

/// Writes a run to `out`. One that was interrupted is not lost for want of a name. Returns where
/// it was written.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn save(
    run: &RunResult,
    out: Option<&Path>,
) -> Result<Option<PathBuf>, ServebenchError> {
    if run.interrupted && run.levels.is_empty() {
        return Ok(None);
    }
    let path = match out {
        Some(out) => out.to_owned(),
        None if run.interrupted => {
            let time = Zoned::now().strftime("%Y%m%d-%H%M%S");
            PathBuf::from(format!("servebench-interrupted-{time}.json"))
        }
        None => return Ok(None),
    };
    run.write(&path)?;
    Ok(Some(path))
}

/// Returns what the program ends with.
pub(crate) fn exit_code(run: &RunResult) -> ExitCode {
    if run.interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS }
}
