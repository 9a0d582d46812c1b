//! `servebench report`.

use crate::error::ServebenchError;
use crate::output;
use crate::report::{comparison, csv, html, markdown, terminal};
use crate::results::{RunResult, Slo};
use crate::statistics::resummarize;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Saved runs
    #[arg(value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<PathBuf>,
    /// Write a report: .html, .md or .csv
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the levels as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the requests of the run as CSV; takes one run
    #[arg(long, value_name = "FILE")]
    csv_requests: Option<PathBuf>,
    /// Judge by this SLO on TTFT instead of the run's own
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    slo_ttft_ms: Option<f64>,
    /// Judge by this SLO on TPOT instead of the run's own
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    slo_tpot_ms: Option<f64>,
}

/// Kinds of report, by the ending of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Html,
    Markdown,
    Csv,
}

pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode, ServebenchError> {
    // Before anything is read or written, so that a misspelt flag leaves nothing half done.
    let out = match &args.out {
        Some(path) => Some((path, format_of(path)?)),
        None => None,
    };
    if args.csv_requests.is_some() && args.files.len() > 1 {
        return Err(ServebenchError::Usage {
            flag: "--csv-requests".to_owned(),
            message: format!("takes one run, found {}; call it for each", args.files.len()),
        });
    }
    let mut runs =
        args.files.iter().map(|path| RunResult::read(path)).collect::<Result<Vec<_>, _>>()?;
    for run in &mut runs {
        let own = run.config.slo();
        let ttft_ms = args.slo_ttft_ms.or(own.ttft_ms);
        let tpot_ms = args.slo_tpot_ms.or(own.tpot_ms);
        // Also without another SLO: other programs' files lack some of the figures.
        resummarize(run, Slo { ttft_ms, tpot_ms });
    }
    output::text(printed(&runs));
    if let Some((path, format)) = out {
        let text = match format {
            Format::Html => html::page(&runs),
            Format::Markdown => markdown::report_text(&runs),
            Format::Csv => csv::levels_csv(&runs),
        };
        write(path, &text)?;
    }
    if let Some(path) = &args.csv {
        write(path, &csv::levels_csv(&runs))?;
    }
    if let (Some(path), [run]) = (&args.csv_requests, runs.as_slice()) {
        write(path, &csv::requests_csv(run))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns each run as text, and then all of them side by side.
fn printed(runs: &[RunResult]) -> String {
    let mut texts: Vec<String> = runs.iter().map(terminal::run_text).collect();
    if runs.len() > 1 {
        texts.push(comparison::text(runs));
    }
    texts.join("\n")
}

fn format_of(path: &Path) -> Result<Format, ServebenchError> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    match ending.to_ascii_lowercase().as_str() {
        "html" | "htm" => Ok(Format::Html),
        "md" | "markdown" => Ok(Format::Markdown),
        "csv" => Ok(Format::Csv),
        _ => Err(ServebenchError::Usage {
            flag: "--out".to_owned(),
            message: format!("{} must end in .html, .md or .csv", path.display()),
        }),
    }
}

fn write(path: &Path, text: &str) -> Result<(), ServebenchError> {
    let failed =
        |action| move |source| ServebenchError::File { action, path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed("make the folder of"))?;
    }
    std::fs::write(path, text).map_err(failed("write"))?;
    output::line(format_args!("Wrote {}", path.display()));
    Ok(())
}

/// Reads a length of time in milliseconds.
fn milliseconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number of milliseconds")?;
    if number.is_finite() && number > 0.0 {
        Ok(number)
    } else {
        Err("an SLO is above zero milliseconds".to_owned())
    }
}
