//! `servebench run`.

use super::config_file;
use super::console::{Console, exit_code, save, stop_on_ctrl_c};
use super::level_list::LevelList;
use super::workload_args::{Levels, WorkloadArgs};
use crate::error::ServebenchError;
use crate::load::runtime;
use crate::output;
use crate::results::{Mode, RunConfig, RunResult};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of the command.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(allow_negative_numbers = true)]
#[serde(default)]
pub(crate) struct RunArgs {
    /// Closed loop: requests in flight, one level for each, such as 1,2,4,8
    #[arg(long, value_name = "N,N,...")]
    concurrency: Option<LevelList>,
    /// Open loop: arrivals per second, one level for each; "inf" sends everything at once
    #[arg(long, value_name = "R,R,...", conflicts_with = "concurrency")]
    rate: Option<LevelList>,
    /// Read flags from a YAML, TOML or JSON file, "_" for "-"; the command line wins
    #[arg(short, long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Run each level so often, to see how much the figures vary [default: 1]
    #[arg(short, long, value_name = "N")]
    repeat: Option<usize>,
    /// Send requests for at least so many seconds
    #[arg(long, value_name = "SECONDS")]
    min_duration: Option<f64>,
    /// Replay the arrivals of the trace, so many times as fast; the default with --trace, without
    /// --rate or --concurrency [default: 1]
    #[arg(long, value_name = "FACTOR")]
    trace_speed: Option<f64>,
    /// Write the levels to this CSV file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the requests to this CSV file
    #[arg(long, value_name = "FILE")]
    csv_requests: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    workload: WorkloadArgs,
}

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, ServebenchError> {
    let args = with_file(args)?;
    let config = config(&args)?;
    let benchmark = args.workload.benchmark(config)?;
    print_start(benchmark.config(), args.workload.seed());
    let out = args.workload.out.as_deref();
    let mut console = Console::new(out);
    let runtime = runtime(args.workload.client_threads())?;
    let result = runtime.block_on(async {
        let stop = stop_on_ctrl_c();
        benchmark.run(&mut console, &stop).await
    });
    console.finish();
    let run = result?;
    finish(&run, out, &args)?;
    Ok(exit_code(&run))
}

/// Returns the arguments with those of the file that they name.
fn with_file(args: &RunArgs) -> Result<RunArgs, ServebenchError> {
    let mut args = args.clone();
    args.workload.resolve_switches();
    let Some(path) = args.config.clone() else { return Ok(args) };
    let mut keys = config_file::read(&path)?;
    if args.concurrency.is_some() || args.rate.is_some() {
        // One of the two replaces either of the file.
        keys.remove("concurrency");
        keys.remove("rate");
    }
    config_file::merge(&args, keys, &path)
}

/// Returns the run that is asked for.
fn config(args: &RunArgs) -> Result<RunConfig, ServebenchError> {
    let usage = |flag: &str, message: &str| ServebenchError::Usage {
        flag: flag.to_owned(),
        message: message.to_owned(),
    };
    let (levels, trace_speed) = match (&args.concurrency, &args.rate) {
        (Some(_), Some(_)) => {
            return Err(usage("--rate", "cannot be given together with --concurrency"));
        }
        (Some(LevelList(values)), None) => {
            (Levels { mode: Mode::Concurrency, values: values.clone() }, args.trace_speed)
        }
        (None, Some(LevelList(values))) => {
            if args.trace_speed.is_some() {
                let message = "replays the arrivals of the trace; leave out --rate";
                return Err(usage("--trace-speed", message));
            }
            (Levels { mode: Mode::Rate, values: values.clone() }, None)
        }
        (None, None) if args.workload.has_trace() => {
            let speed = args.trace_speed.unwrap_or(1.0);
            (Levels { mode: Mode::Rate, values: Vec::new() }, Some(speed))
        }
        (None, None) => {
            return Err(usage("--concurrency", "give it, --rate, or --trace to replay one"));
        }
    };
    if args.trace_speed.is_some() && !args.workload.has_trace() {
        return Err(usage("--trace-speed", "needs --trace"));
    }
    Ok(RunConfig {
        min_duration: args.min_duration,
        repeat: args.repeat.unwrap_or(1),
        trace_speed,
        ..args.workload.config(levels)
    })
}

/// Says what is about to happen, and the seed where the user did not choose it.
fn print_start(config: &RunConfig, seed: Option<u64>) {
    let levels: Vec<String> = config.levels.iter().map(ToString::to_string).collect();
    let what = match (config.mode, &config.trace) {
        (Mode::Rate, Some(trace)) if levels.is_empty() => format!("replay of {trace}"),
        (Mode::Rate, _) => format!("rates {} per second", levels.join(", ")),
        (Mode::Concurrency, _) => format!("concurrency {}", levels.join(", ")),
    };
    let repeat =
        if config.repeat > 1 { format!(" ({} times each)", config.repeat) } else { String::new() };
    output::line(format!(
        "servebench {}: {what}{repeat} against {} ({})",
        env!("CARGO_PKG_VERSION"),
        config.url,
        config.model
    ));
    print_seed(config.seed, seed);
}

/// Says the seed where the user did not choose it.
pub(crate) fn print_seed(seed: u64, given: Option<u64>) {
    if given.is_none() {
        output::line(format!("seed {seed} (--seed {seed} repeats these prompts and arrivals)"));
    }
}

/// Prints the run and writes its files.
fn finish(run: &RunResult, out: Option<&Path>, args: &RunArgs) -> Result<(), ServebenchError> {
    print_and_save(run, out)?;
    let _ = args;
    Ok(())
}

/// Prints the run and writes it to `out`.
pub(crate) fn print_and_save(run: &RunResult, out: Option<&Path>) -> Result<(), ServebenchError> {
    if run.levels.is_empty() {
        output::line("stopped before any request had ended; nothing was measured");
    } else {
        output::line("");
    }
    if let Some(path) = save(run, out)? {
        output::line(format!("saved {}", path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::LoadValue;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        run: RunArgs,
    }

    /// Returns what `flags` and a file ask for.
    fn parse(flags: &str, file: Option<(&str, &str)>) -> Result<(RunArgs, RunConfig), String> {
        let folder = tempfile::tempdir().unwrap();
        let mut words: Vec<String> =
            std::iter::once("program").chain(flags.split_whitespace()).map(str::to_owned).collect();
        if let Some((name, text)) = file {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            words.extend(["--config".to_owned(), path.display().to_string()]);
        }
        let args = Program::try_parse_from(words).map_err(|error| error.to_string())?.run;
        let args = with_file(&args).map_err(|error| error.to_string())?;
        let config = config(&args).map_err(|error| error.to_string())?;
        Ok((args, config))
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_defaults() {
        let files = [
            (
                "a.yaml",
                "url: u\nmodel: m\nconcurrency: [1, 2]\ninput_len: 9\noutput_len: 5\n\
                        ignore_eos: false\ngpu: false\nduration: 3\nout: f.json\nrepeat: 2\n",
            ),
            (
                "a.toml",
                "url = 'u'\nmodel = 'm'\nconcurrency = '1,2'\ninput_len = 9\n\
                        output_len = 5\nignore_eos = false\ngpu = false\nduration = 3\n\
                        out = 'f.json'\nrepeat = 2\n",
            ),
            (
                "a.json",
                r#"{"url": "u", "model": "m", "concurrency": [1, 2], "input_len": 9,
                           "output_len": 5, "ignore_eos": false, "gpu": false, "duration": 3,
                           "out": "f.json", "repeat": 2}"#,
            ),
        ];
        for (name, text) in files {
            let flags = "--output-len 6 --ignore-eos --seed 1 --client-threads 2";
            let (args, got) = parse(flags, Some((name, text))).unwrap();
            let expected = RunConfig {
                url: "u".to_owned(),
                model: "m".to_owned(),
                levels: vec![LoadValue(1.0), LoadValue(2.0)],
                input_len: 9,
                output_len: 6,
                gpu_telemetry: false,
                duration: Some(3.0),
                repeat: 2,
                seed: 1,
                ..RunConfig::default()
            };
            assert_eq!(got, expected, "{name}");
            assert_eq!(args.workload.out, Some(PathBuf::from("f.json")), "{name}");
            assert_eq!(args.workload.client_threads().get(), 2, "{name}");
        }
    }

    #[test]
    fn a_kind_of_load_on_the_command_line_replaces_the_other_in_the_file() {
        let file = Some(("a.yaml", "concurrency: 4\nurl: u\n"));
        let (_, config) = parse("--rate 0.5,inf", file).unwrap();
        assert_eq!(config.mode, Mode::Rate);
        assert_eq!(config.levels, [LoadValue(0.5), LoadValue(f64::INFINITY)]);
    }

    #[test]
    fn what_a_file_says_wrongly_is_an_error_that_names_the_key() {
        for (name, text, part) in [
            ("a.yaml", "foo: 1", "\"foo\" is no flag"),
            ("a.yaml", "input-len: 1", "\"input-len\" is no flag"),
            ("a.yaml", "seed: many", "seed: "),
            ("a.yaml", "concurrency: [1, x]", "concurrency: "),
            ("a.toml", "preset = 'fast'", "preset: "),
            ("a.json", "[1]", "must hold names of flags"),
            ("a.json", "{", "--config"),
            ("a.yaml", "concurrency: 1\nrate: 1", "--rate: "),
            ("a.yaml", "url: u", "--concurrency: give it"),
        ] {
            let error = parse("", Some((name, text))).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_trace_is_replayed_unless_levels_are_given() {
        let (_, replay) = parse("--trace t.csv", None).unwrap();
        assert_eq!((replay.mode, replay.trace_speed), (Mode::Rate, Some(1.0)));
        let (_, faster) = parse("--trace t.csv --trace-speed 4", None).unwrap();
        assert_eq!(faster.trace_speed, Some(4.0));
        let (_, rated) = parse("--trace t.csv --rate 2", None).unwrap();
        assert_eq!((rated.trace_speed, rated.levels), (None, vec![LoadValue(2.0)]));
        for flags in ["--trace-speed 2 --concurrency 1", "--trace t --rate 1 --trace-speed 2"] {
            let error = parse(flags, None).unwrap_err();
            assert!(error.starts_with("--trace-speed: "), "{flags}: {error}");
        }
    }
}
