//! `servebench check`.

use crate::check::{NoisePolicy, Thresholds, check};
use crate::error::ServebenchError;
use crate::output;
use crate::report::regression;
use crate::results::RunResult;
use crate::statistics::complete;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The run to check
    #[arg(value_name = "CANDIDATE")]
    candidate: PathBuf,
    /// The run that it must not be worse than
    #[arg(short, long, value_name = "FILE")]
    baseline: PathBuf,
    /// Most that the median TTFT may rise
    #[arg(long = "max-ttft-degradation-pct", value_name = "PERCENT", value_parser = percentage, default_value_t = 15.0)]
    ttft: f64,
    /// Most that the median TPOT may rise
    #[arg(long = "max-tpot-degradation-pct", value_name = "PERCENT", value_parser = percentage, default_value_t = 10.0)]
    tpot: f64,
    /// Most that the output tokens per second may fall
    #[arg(long = "max-throughput-degradation-pct", value_name = "PERCENT", value_parser = percentage, default_value_t = 10.0)]
    throughput: f64,
    /// Most that the goodput may fall
    #[arg(long = "max-goodput-degradation-pct", value_name = "PERCENT", value_parser = percentage, default_value_t = 10.0)]
    goodput: f64,
    /// Most requests that may fail
    #[arg(long = "max-error-rate-pct", value_name = "PERCENT", value_parser = percentage, default_value_t = 1.0)]
    error_rate: f64,
    /// Most that the p99 of TTFT may rise [default: not checked]
    #[arg(long = "max-ttft-p99-degradation-pct", value_name = "PERCENT", value_parser = percentage)]
    ttft_p99: Option<f64>,
    /// Most that the p99 of TPOT may rise [default: not checked]
    #[arg(long = "max-tpot-p99-degradation-pct", value_name = "PERCENT", value_parser = percentage)]
    tpot_p99: Option<f64>,
    /// Most that the p99 of the gaps between tokens may rise [default: not checked]
    #[arg(long = "max-itl-p99-degradation-pct", value_name = "PERCENT", value_parser = percentage)]
    itl_p99: Option<f64>,
    /// Most that the p99 of the E2E latency may rise [default: not checked]
    #[arg(long = "max-e2e-p99-degradation-pct", value_name = "PERCENT", value_parser = percentage)]
    e2e_p99: Option<f64>,
    /// Count what chance explains, too: without it, a change within the spread of repeated runs
    /// passes
    #[arg(long)]
    strict: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, ServebenchError> {
    let mut candidate = RunResult::read(&args.candidate)?;
    let mut baseline = RunResult::read(&args.baseline)?;
    complete(&mut candidate);
    complete(&mut baseline);
    let noise = if args.strict { NoisePolicy::Count } else { NoisePolicy::Excuse };
    let report = check(&candidate, &baseline, &args.thresholds(), noise).map_err(|reasons| {
        let message = format!(
            "the two runs do not compare: {}; measure the candidate as the baseline was",
            reasons.join("; ")
        );
        ServebenchError::Usage { flag: "--baseline".to_owned(), message }
    })?;
    if args.json {
        let json = serde_json::to_string_pretty(&report);
        output::line(json.expect("numbers and texts can be written as JSON"));
    } else {
        output::text(regression::text(&report));
    }
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl CheckArgs {
    fn thresholds(&self) -> Thresholds {
        Thresholds {
            ttft: self.ttft,
            tpot: self.tpot,
            throughput: self.throughput,
            goodput: self.goodput,
            error_rate: self.error_rate,
            ttft_p99: self.ttft_p99,
            tpot_p99: self.tpot_p99,
            itl_p99: self.itl_p99,
            e2e_p99: self.e2e_p99,
        }
    }
}

/// Reads a number of percent that a figure may be worse by.
fn percentage(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim_end_matches('%').trim().parse().map_err(|_| "not a number")?;
    if number.is_finite() && number >= 0.0 {
        Ok(number)
    } else {
        Err("a threshold is zero or more percent".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CheckArgs,
    }

    #[test]
    fn thresholds_are_those_of_the_flags() {
        let parse = |flags: &[&str]| {
            let line = [&["check", "new.json", "--baseline", "old.json"], flags].concat();
            Line::try_parse_from(line).map(|line| line.args.thresholds())
        };
        assert_eq!(parse(&[]).unwrap(), Thresholds::default());
        let strict =
            parse(&["--max-ttft-degradation-pct", "5", "--max-itl-p99-degradation-pct", "7.5%"]);
        let expected = Thresholds { ttft: 5.0, itl_p99: Some(7.5), ..Thresholds::default() };
        assert_eq!(strict.unwrap(), expected);
        for wrong in ["-1", "NaN", "inf", "few"] {
            let flag = format!("--max-goodput-degradation-pct={wrong}");
            assert!(parse(&[&flag]).is_err(), "{wrong}");
        }
    }
}
