//! What a run may ask for.
//!
//! Checked once, for the command line, files and callers of the library alike; errors name flags
//! as users of the command line write them.

use crate::error::ServebenchError;
use crate::results::{ArrivalDist, Endpoint, LoadValue, Mode, RunConfig};
use crate::server_metrics::metrics_url;

/// Most users of a closed loop: more connections than one address has ports.
const MAX_USERS: f64 = 65_535.0;

/// Checks a run and the levels that it names.
pub(super) fn check_config(config: &RunConfig) -> Result<(), ServebenchError> {
    for value in &config.levels {
        check_level(config, *value)?;
    }
    required("--url", &config.url)?;
    required("--model", &config.model)?;
    at_least_one("--input-len", Some(config.input_len as usize))?;
    at_least_one("--output-len", Some(config.output_len as usize))?;
    at_least_one("--repeat", Some(config.repeat))?;
    at_least_one("--num-requests", config.num_requests)?;
    at_least_one("--max-concurrency", config.max_concurrency)?;
    at_least_one("--turns", config.turns.map(|turns| turns as usize))?;
    positive("--timeout", Some(config.timeout))?;
    positive("--duration", config.duration)?;
    positive("--min-duration", config.min_duration)?;
    positive("--slo-ttft-ms", config.slo_ttft_ms)?;
    positive("--slo-tpot-ms", config.slo_tpot_ms)?;
    positive("--burstiness", Some(config.burstiness))?;
    positive("--trace-speed", config.trace_speed)?;
    positive("--trace-scale", config.trace_scale)?;
    not_negative("--temperature", Some(config.temperature))?;
    not_negative("--think-time", config.think_time)?;
    check_metrics_option(config.scrape_metrics.as_deref())?;
    check_combinations(config)
}

fn check_metrics_option(option: Option<&str>) -> Result<(), ServebenchError> {
    match option {
        Some(option) if metrics_url("http://localhost/v1", Some(option)).is_none() => {
            Err(usage("--scrape-metrics", &format!("is a URL or \"auto\", got {option:?}")))
        }
        Some(_) | None => Ok(()),
    }
}

/// Checks flags that only make sense together.
fn check_combinations(config: &RunConfig) -> Result<(), ServebenchError> {
    let closed_loop = config.mode == Mode::Concurrency;
    let rules = [
        (
            config.max_concurrency.is_some() && closed_loop,
            "--max-concurrency",
            "limits an open loop; in a closed one --concurrency is the limit",
        ),
        (
            config.arrival_dist == ArrivalDist::Poisson && differs(config.burstiness, 1.0),
            "--burstiness",
            "is the shape of --arrival-dist gamma; Poisson arrivals have none",
        ),
        (
            config.arrival_dist == ArrivalDist::Gamma && closed_loop,
            "--arrival-dist",
            "spreads the arrivals of an open loop; give --rate instead of --concurrency",
        ),
        (
            config.trace_speed.is_some() && closed_loop,
            "--trace-speed",
            "stretches the arrivals of a trace; leave out --concurrency to replay them",
        ),
        (
            config.think_time.is_some() && config.turns.is_none_or(|turns| turns < 2),
            "--think-time",
            "is the pause before a further turn; give --turns 2 or more",
        ),
        (
            config.turns.is_some_and(|turns| turns > 1) && config.endpoint == Endpoint::Completions,
            "--turns",
            "needs --endpoint chat: completions have no conversations",
        ),
    ];
    match rules.into_iter().find(|(is_broken, ..)| *is_broken) {
        Some((_, flag, message)) => Err(usage(flag, message)),
        None => Ok(()),
    }
}

/// Checks one level.
pub(super) fn check_level(config: &RunConfig, value: LoadValue) -> Result<(), ServebenchError> {
    let is_timed = config.duration.is_some() || config.min_duration.is_some();
    match config.mode {
        // Also true for what is no number.
        Mode::Concurrency if value.0.fract() != 0.0 || !(1.0..=MAX_USERS).contains(&value.0) => {
            let message = format!("levels are whole numbers from 1 to {MAX_USERS}, got {value}");
            Err(usage("--concurrency", &message))
        }
        Mode::Rate if value.0.is_nan() || value.0 <= 0.0 => {
            Err(usage("--rate", &format!("levels are above 0, got {value}")))
        }
        Mode::Rate if value.0.is_infinite() && is_timed => Err(usage(
            "--duration",
            "needs finite rates: \"inf\" sends everything at once; give --num-requests instead",
        )),
        Mode::Concurrency | Mode::Rate => Ok(()),
    }
}

/// Returns an error about a flag.
pub(super) fn usage(flag: &str, message: &str) -> ServebenchError {
    ServebenchError::Usage { flag: flag.to_owned(), message: message.to_owned() }
}

fn required(flag: &str, text: &str) -> Result<(), ServebenchError> {
    if text.is_empty() { Err(usage(flag, "is missing")) } else { Ok(()) }
}

fn at_least_one(flag: &str, number: Option<usize>) -> Result<(), ServebenchError> {
    if number == Some(0) { Err(usage(flag, "must be at least 1, got 0")) } else { Ok(()) }
}

fn positive(flag: &str, number: Option<f64>) -> Result<(), ServebenchError> {
    match number {
        Some(number) if !(number.is_finite() && number > 0.0) => {
            Err(usage(flag, &format!("must be above 0 and finite, got {number}")))
        }
        Some(_) | None => Ok(()),
    }
}

fn not_negative(flag: &str, number: Option<f64>) -> Result<(), ServebenchError> {
    match number {
        Some(number) if !(number.is_finite() && number >= 0.0) => {
            Err(usage(flag, &format!("must be 0 or more and finite, got {number}")))
        }
        Some(_) | None => Ok(()),
    }
}

/// Tells whether a number was changed from what it is by default.
#[expect(clippy::float_cmp, reason = "a default that nobody changed is the same number")]
fn differs(number: f64, default: f64) -> bool {
    number != default
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> RunConfig {
        RunConfig {
            url: "http://127.0.0.1:1/v1".to_owned(),
            model: "m".to_owned(),
            ..RunConfig::default()
        }
    }

    #[test]
    fn every_bad_value_is_refused_by_the_name_of_its_flag() {
        check_config(&base()).unwrap();
        type Change = fn(&mut RunConfig);
        let bad: [(&str, Change); 23] = [
            ("--url", |c| c.url.clear()),
            ("--model", |c| c.model.clear()),
            ("--input-len", |c| c.input_len = 0),
            ("--output-len", |c| c.output_len = 0),
            ("--repeat", |c| c.repeat = 0),
            ("--num-requests", |c| c.num_requests = Some(0)),
            ("--max-concurrency", |c| (c.mode, c.max_concurrency) = (Mode::Rate, Some(0))),
            ("--max-concurrency", |c| c.max_concurrency = Some(3)),
            ("--turns", |c| c.turns = Some(0)),
            ("--turns", |c| (c.turns, c.endpoint) = (Some(2), Endpoint::Completions)),
            ("--timeout", |c| c.timeout = 0.0),
            ("--timeout", |c| c.timeout = f64::INFINITY),
            ("--duration", |c| c.duration = Some(-1.0)),
            ("--min-duration", |c| c.min_duration = Some(f64::NAN)),
            ("--slo-ttft-ms", |c| c.slo_ttft_ms = Some(0.0)),
            ("--slo-tpot-ms", |c| c.slo_tpot_ms = Some(-5.0)),
            ("--burstiness", |c| (c.mode, c.burstiness) = (Mode::Rate, 0.5)),
            ("--arrival-dist", |c| c.arrival_dist = ArrivalDist::Gamma),
            ("--trace-speed", |c| c.trace_speed = Some(2.0)),
            ("--temperature", |c| c.temperature = -0.1),
            ("--scrape-metrics", |c| c.scrape_metrics = Some("yes".to_owned())),
            ("--think-time", |c| c.think_time = Some(1.0)),
            ("--think-time", |c| (c.turns, c.think_time) = (Some(2), Some(-1.0))),
        ];
        for (flag, change) in bad {
            let mut config = base();
            change(&mut config);
            let message = check_config(&config).unwrap_err().to_string();
            assert!(message.starts_with(&format!("{flag}: ")), "{flag}: {message}");
        }
    }

    #[test]
    fn levels_must_fit_their_mode() {
        let check = |mode, value, duration| {
            let config = RunConfig { mode, duration, ..base() };
            check_level(&config, LoadValue(value)).is_ok()
        };
        assert!(check(Mode::Concurrency, 4.0, Some(1.0)));
        assert!(check(Mode::Rate, 0.5, Some(1.0)));
        assert!(check(Mode::Rate, f64::INFINITY, None));
        assert!(!check(Mode::Rate, f64::INFINITY, Some(1.0)));
        for bad in [0.0, -1.0, 1.5, f64::INFINITY, f64::NAN, 1e6] {
            assert!(!check(Mode::Concurrency, bad, None), "{bad}");
        }
        for bad in [0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
            assert!(!check(Mode::Rate, bad, None), "{bad}");
        }
    }
}
