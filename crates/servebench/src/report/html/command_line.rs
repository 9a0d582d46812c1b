//! A command that measures the same loads again.

use crate::results::{ArrivalDist, LengthDist, Mode, RunConfig};
use clap::ValueEnum;

/// Returns a command that measures what `config` says. Flags with their default are left out.
pub(super) fn command_line(config: &RunConfig) -> String {
    let default = RunConfig::default();
    let mut words = vec!["servebench".to_owned(), "run".to_owned()];
    let mut flag = |name: &str, value: String| words.extend([name.to_owned(), quoted(&value)]);
    flag("--url", config.url.clone());
    flag("--model", config.model.clone());
    let loads: Vec<String> = config.levels.iter().map(ToString::to_string).collect();
    flag(
        match config.mode {
            Mode::Concurrency => "--concurrency",
            Mode::Rate => "--rate",
        },
        loads.join(","),
    );
    let optional = [
        ("--preset", config.preset.clone()),
        ("--trace", config.trace.clone()),
        ("--trace-speed", config.trace_speed.map(|speed| speed.to_string())),
        ("--trace-scale", config.trace_scale.map(|scale| scale.to_string())),
        ("--input-dist", config.input_dist.map(dist_name)),
        ("--output-dist", config.output_dist.map(dist_name)),
        ("--shared-prefix-tokens", config.shared_prefix_tokens.map(|tokens| tokens.to_string())),
        ("--turns", config.turns.map(|turns| turns.to_string())),
        ("--think-time", config.think_time.map(|seconds| seconds.to_string())),
        ("--max-concurrency", config.max_concurrency.map(|most| most.to_string())),
        ("--num-requests", config.num_requests.map(|number| number.to_string())),
        ("--duration", config.duration.map(|seconds| seconds.to_string())),
        ("--min-duration", config.min_duration.map(|seconds| seconds.to_string())),
        ("--tokenizer", config.tokenizer.clone()),
        ("--scrape-metrics", config.scrape_metrics.clone()),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            flag(name, value);
        }
    }
    let mut changed = |name: &str, value: String, default: String| {
        if value != default {
            flag(name, value);
        }
    };
    changed("--prompts", config.prompts.clone(), default.prompts);
    changed("--input-len", config.input_len.to_string(), default.input_len.to_string());
    changed("--output-len", config.output_len.to_string(), default.output_len.to_string());
    changed("--repeat", config.repeat.to_string(), default.repeat.to_string());
    changed("--warmup", config.warmup.to_string(), default.warmup.to_string());
    changed("--temperature", config.temperature.to_string(), default.temperature.to_string());
    changed("--timeout", config.timeout.to_string(), default.timeout.to_string());
    changed("--endpoint", value_name(config.endpoint), value_name(default.endpoint));
    changed("--burstiness", config.burstiness.to_string(), default.burstiness.to_string());
    changed("--slo-ttft-ms", slo(config.slo_ttft_ms), slo(default.slo_ttft_ms));
    changed("--slo-tpot-ms", slo(config.slo_tpot_ms), slo(default.slo_tpot_ms));
    flag("--seed", config.seed.to_string());
    if config.arrival_dist == ArrivalDist::Gamma {
        words.extend(["--arrival-dist".to_owned(), "gamma".to_owned()]);
    }
    if !config.ignore_eos {
        words.push("--no-ignore-eos".to_owned());
    }
    words.join(" ")
}

fn slo(ms: Option<f64>) -> String {
    ms.map_or_else(String::new, |ms| ms.to_string())
}

fn dist_name(dist: LengthDist) -> String {
    value_name(dist)
}

fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Returns a word as a POSIX shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_./:,=@+%".contains(sign);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::LoadValue;

    #[test]
    fn only_what_is_not_the_default_is_said() {
        let config = RunConfig {
            url: "http://127.0.0.1:8000/v1".to_owned(),
            model: "a model's".to_owned(),
            mode: Mode::Rate,
            levels: vec![LoadValue(0.5), LoadValue(f64::INFINITY)],
            output_len: 32,
            ignore_eos: false,
            seed: 7,
            ..RunConfig::default()
        };
        assert_eq!(
            command_line(&config),
            r"servebench run --url http://127.0.0.1:8000/v1 --model 'a model'\''s' --rate 0.5,inf --output-len 32 --seed 7 --no-ignore-eos"
        );
    }
}
