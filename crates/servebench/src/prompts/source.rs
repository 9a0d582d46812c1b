//! Where the prompts of a run come from.

use super::dolly::DollySource;
use super::prompt_file::{self, FilePrompt};
use super::sampling::draw;
use super::synthetic::{SharedPrefix, SyntheticPrompts, follow_ups};
use super::trace_prompts::TracePrompts;
use super::words::{WordList, stream};
use super::{Prompt, TokenCounter, lengths};
use crate::error::ServebenchError;
use crate::results::{LengthDist, RunConfig};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Makes the prompts of a run.
#[derive(Debug)]
pub struct PromptSource {
    kind: Kind,
    /// Turns of a conversation.
    num_turns: usize,
    /// Spread of output lengths around the run's, where it is not fixed.
    output_dist: Option<(LengthDist, u32)>,
}

#[derive(Debug)]
enum Kind {
    Synthetic(SyntheticPrompts),
    /// Prompts that somebody wrote, to draw from.
    Written(WrittenPrompts),
    /// The same, to replay in their order.
    Listed(WrittenPrompts),
    Trace(TracePrompts),
}

/// Prompts that somebody wrote.
#[derive(Debug)]
struct WrittenPrompts {
    prompts: Vec<FilePrompt>,
    source: String,
    /// What each begins with.
    shared_prefix: String,
    /// For turns that are not written.
    words: WordList,
    /// Words of an opening, by which its follow-ups are made.
    input_len: u32,
}

impl PromptSource {
    /// Looks at what the run asks for, and reads its files.
    ///
    /// # Errors
    /// When a file cannot be read or holds no prompts, or when flags contradict each other.
    pub fn new(config: &RunConfig, tokens: Option<&TokenCounter>) -> Result<Self, ServebenchError> {
        check_numbers(config)?;
        let kind = match &config.trace {
            Some(trace) => trace_kind(config, Path::new(trace), WordList::new(tokens))?,
            None => prompts_kind(config, WordList::new(tokens))?,
        };
        let num_turns = config.turns.unwrap_or(1) as usize;
        if config.turns.is_some()
            && let Kind::Written(written) = &kind
        {
            written.check_turns(num_turns, &config.prompts)?;
        }
        let output_dist = config.output_dist.filter(|&dist| dist != LengthDist::Fixed);
        let output_dist = output_dist.map(|dist| (dist, config.output_len));
        Ok(Self { kind, num_turns, output_dist })
    }

    /// Returns `num_prompts` prompts; equal seeds give equal prompts. A trace gives its first ones,
    /// with the arrivals that were recorded.
    #[must_use]
    pub fn prompts(&self, num_prompts: usize, seed: u64) -> Vec<Prompt> {
        let mut prompts = match &self.kind {
            Kind::Synthetic(synthetic) => {
                let conversations = synthetic.conversations(num_prompts, self.num_turns, seed);
                conversations.into_iter().map(synthetic_prompt).collect()
            }
            Kind::Written(written) => {
                let drawn = draw(written.prompts.len(), num_prompts, seed);
                let prompt = |(number, position)| {
                    written.prompt(&written.prompts[position], number, self.num_turns, seed)
                };
                (0..).zip(drawn).map(prompt).collect()
            }
            Kind::Listed(written) => {
                let listed = (0..).zip(&written.prompts).take(num_prompts);
                listed.map(|(number, prompt)| written.prompt(prompt, number, 1, seed)).collect()
            }
            Kind::Trace(trace) => trace.prompts(num_prompts, seed),
        };
        self.spread_output_lengths(&mut prompts, seed);
        prompts
    }

    /// Returns how many prompts there are, where that is not up to the caller: in a trace.
    #[must_use]
    pub fn num_recorded(&self) -> Option<usize> {
        match &self.kind {
            Kind::Trace(trace) => Some(trace.len()),
            Kind::Listed(written) => Some(written.prompts.len()),
            Kind::Synthetic(_) | Kind::Written(_) => None,
        }
    }

    /// Draws the lengths of outputs that no file tells.
    fn spread_output_lengths(&self, prompts: &mut [Prompt], seed: u64) {
        let Some((dist, output_len)) = self.output_dist else {
            return;
        };
        for (prompt, number) in prompts.iter_mut().zip(0..) {
            // Another stream than the texts', so that outputs do not depend on them.
            let mut rng = stream(seed.rotate_left(32), number);
            let sampled = lengths::sample(dist, output_len, &mut rng);
            prompt.output_len.get_or_insert(sampled);
        }
    }
}

impl WrittenPrompts {
    fn prompt(&self, written: &FilePrompt, number: u64, num_turns: usize, seed: u64) -> Prompt {
        let mut turns = if num_turns > 1 && !written.user_turns.is_empty() {
            written.user_turns[..num_turns].to_vec()
        } else {
            let mut rng = stream(seed, number);
            let opening = vec![written.text.clone()];
            let opening_len = self.input_len as usize;
            [opening, follow_ups(&self.words, num_turns - 1, opening_len, &mut rng)].concat()
        };
        if !self.shared_prefix.is_empty() {
            turns[0] = format!("{}\n\n{}", self.shared_prefix, turns[0]);
        }
        let source = self.source.clone();
        Prompt { turns, source, output_len: written.output_len, arrival: None }
    }

    /// Checks that conversations in the file are as long as asked for.
    fn check_turns(&self, num_turns: usize, file: &str) -> Result<(), ServebenchError> {
        let is_short = |prompt: &&FilePrompt| {
            !prompt.user_turns.is_empty() && prompt.user_turns.len() < num_turns
        };
        let Some(short) = self.prompts.iter().find(is_short) else {
            return Ok(());
        };
        Err(ServebenchError::Line {
            path: file.into(),
            line: short.line,
            message: format!(
                "the conversation has {} messages of the user, but --turns asks for {num_turns}",
                short.user_turns.len()
            ),
        })
    }
}

fn synthetic_prompt(turns: Vec<String>) -> Prompt {
    Prompt { turns, source: "synthetic".to_owned(), output_len: None, arrival: None }
}

fn usage(flag: &str, message: impl Into<String>) -> ServebenchError {
    ServebenchError::Usage { flag: flag.to_owned(), message: message.into() }
}

/// Checks numbers that come from a command line or a file of settings.
fn check_numbers(config: &RunConfig) -> Result<(), ServebenchError> {
    let lengths = [("--input-len", config.input_len), ("--output-len", config.output_len)];
    let turns = ("--turns", config.turns.unwrap_or(1));
    for (flag, number) in lengths.into_iter().chain([turns]) {
        if number == 0 {
            return Err(usage(flag, "0 is too few; ask for 1 or more"));
        }
    }
    let scales = [("--trace-speed", config.trace_speed), ("--trace-scale", config.trace_scale)];
    for (flag, scale) in scales {
        let Some(scale) = scale else {
            continue;
        };
        if config.trace.is_none() {
            return Err(usage(flag, "there is no trace; name one with --trace"));
        }
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(usage(flag, format!("{scale} is no positive number")));
        }
    }
    Ok(())
}

fn prompts_kind(config: &RunConfig, words: WordList) -> Result<Kind, ServebenchError> {
    let num_shared = config.shared_prefix_tokens.unwrap_or(0);
    let shared_prefix = SharedPrefix::new(&words, num_shared as usize, config.seed);
    let is_synthetic = config.prompts == "synthetic";
    if is_synthetic {
        if num_shared >= config.input_len {
            let message = format!(
                "prompts of {} tokens cannot begin with {num_shared} shared ones; make \
                 --input-len larger",
                config.input_len
            );
            return Err(usage("--shared-prefix-tokens", message));
        }
        let input_dist = config.input_dist.unwrap_or(LengthDist::Fixed);
        let input_len = config.input_len;
        return Ok(Kind::Synthetic(SyntheticPrompts {
            words,
            input_len,
            input_dist,
            shared_prefix,
        }));
    }
    if config.input_dist.is_some_and(|dist| dist != LengthDist::Fixed) {
        let message = "only made-up prompts can have any length; use --prompts synthetic";
        return Err(usage("--input-dist", message));
    }
    let (prompts, source) = if config.prompts == "dolly" {
        let dolly = DollySource::from_variables(|name| std::env::var_os(name));
        (dolly.prompts(config.input_len)?, "dolly".to_owned())
    } else {
        let path = Path::new(&config.prompts);
        if !path.is_file() {
            let message =
                format!("expected synthetic, dolly or a file, found {:?}", config.prompts);
            return Err(usage("--prompts", message));
        }
        (prompt_file::read(path)?, file_name(path))
    };
    let (shared_prefix, input_len) = (shared_prefix.text, config.input_len);
    Ok(Kind::Written(WrittenPrompts { prompts, source, shared_prefix, words, input_len }))
}

fn trace_kind(config: &RunConfig, path: &Path, words: WordList) -> Result<Kind, ServebenchError> {
    let ignored = [
        ("--preset", config.preset.is_some()),
        ("--input-dist", config.input_dist.is_some()),
        ("--output-dist", config.output_dist.is_some()),
        ("--shared-prefix-tokens", config.shared_prefix_tokens.is_some()),
        ("--turns", config.turns.is_some()),
    ];
    for (flag, given) in ignored {
        if given {
            return Err(usage(flag, "--trace says what is sent; leave one of the two out"));
        }
    }
    if !holds_prompts(path)? {
        let scale = config.trace_scale.unwrap_or(1.0);
        return Ok(Kind::Trace(TracePrompts::read(path, words, scale)?));
    }
    if config.trace_scale.is_some() {
        let message = "this trace has texts, whose lengths are their own; leave it out";
        return Err(usage("--trace-scale", message));
    }
    if config.trace_speed.is_some() {
        let message = "this trace has texts but no arrivals; give --concurrency or --rate";
        return Err(usage("--trace", message));
    }
    let (prompts, source) =
        (prompt_file::read_objects(path)?, format!("trace:{}", file_name(path)));
    let (shared_prefix, input_len) = (String::new(), config.input_len);
    Ok(Kind::Listed(WrittenPrompts { prompts, source, shared_prefix, words, input_len }))
}

/// Tells whether a trace has texts to send, by its first line: an object, but none of Mooncake's.
fn holds_prompts(path: &Path) -> Result<bool, ServebenchError> {
    let source = |source| ServebenchError::File { action: "read", path: path.to_owned(), source };
    let mut lines = BufReader::new(File::open(path).map_err(source)?).lines();
    let first = lines.find(|line| !matches!(line, Ok(line) if line.trim().is_empty()));
    let first = first.transpose().map_err(source)?.unwrap_or_default();
    let row = serde_json::from_str::<Value>(&first).unwrap_or_default();
    Ok(["prompt", "messages", "text"].iter().any(|name| row.get(name).is_some()))
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn source(config: &RunConfig) -> Result<PromptSource, String> {
        PromptSource::new(config, None).map_err(|error| error.to_string())
    }

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    /// Writes a file and returns its path with the folder that keeps it.
    fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        (folder, path.to_str().unwrap().to_owned())
    }

    fn numbered_prompts(count: usize) -> String {
        (0..count).map(|at| format!("{{\"prompt\": \"prompt {at}\"}}\n")).collect()
    }

    #[test]
    fn lengths_of_inputs_and_outputs_spread_where_asked() {
        let config = RunConfig {
            input_dist: Some(LengthDist::Uniform),
            output_dist: Some(LengthDist::Normal),
            ..RunConfig::default()
        };
        let prompts = source(&config).unwrap().prompts(200, 1);
        let lengths: Vec<usize> = prompts.iter().map(|prompt| words(&prompt.turns[0])).collect();
        assert!(lengths.iter().all(|length| (128..=384).contains(length)));
        assert!(lengths.iter().min() < Some(&150) && lengths.iter().max() > Some(&350));
        let mut output_lens: Vec<u32> =
            prompts.iter().map(|prompt| prompt.output_len.unwrap()).collect();
        output_lens.sort_unstable();
        assert!((118..138).contains(&output_lens[100]));
        output_lens.dedup();
        assert!(output_lens.len() > 50);
    }

    #[test]
    fn a_file_is_drawn_from_and_a_trace_of_texts_is_replayed_in_order() {
        let (_folder, path) = file("mine.jsonl", &numbered_prompts(20));
        let config = RunConfig { prompts: path.clone(), ..RunConfig::default() };
        let drawn = source(&config).unwrap();
        assert_eq!(drawn.num_recorded(), None);
        let texts: Vec<String> =
            drawn.prompts(20, 1).into_iter().map(|mut prompt| prompt.turns.remove(0)).collect();
        let in_order: Vec<String> = (0..20).map(|at| format!("prompt {at}")).collect();
        assert_ne!(texts, in_order);
        let mut sorted = texts;
        sorted.sort_by_key(|text| text[7..].parse::<u32>().unwrap());
        assert_eq!(sorted, in_order);

        let config = RunConfig { trace: Some(path), ..RunConfig::default() };
        let listed = source(&config).unwrap();
        assert_eq!(listed.num_recorded(), Some(20));
        let prompts = listed.prompts(3, 1);
        assert_eq!(prompts[2].turns, ["prompt 2"]);
        assert_eq!((prompts.len(), prompts[2].source.as_str()), (3, "trace:mine.jsonl"));
    }

    #[test]
    fn the_three_formats_of_traces_are_told_apart_by_content() {
        let mooncake =
            r#"{"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [4]}"#;
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,9,2\n";
        for text in [mooncake, azure] {
            let (_folder, path) = file("trace.txt", text);
            let config = RunConfig { trace: Some(path), ..RunConfig::default() };
            let prompts = source(&config).unwrap().prompts(1, 1);
            assert_eq!((words(&prompts[0].turns[0]), prompts[0].output_len), (9, Some(2)));
            assert!(prompts[0].arrival.is_some());
        }
        let (_folder, path) = file("trace.txt", "\n{\"text\": \"hello\", \"max_tokens\": 5}\n");
        let config = RunConfig { trace: Some(path), ..RunConfig::default() };
        let prompts = source(&config).unwrap().prompts(1, 1);
        assert_eq!((prompts[0].turns[0].as_str(), prompts[0].output_len), ("hello", Some(5)));
        assert_eq!(prompts[0].arrival, None);
    }

    #[test]
    fn written_conversations_are_kept_and_single_prompts_get_follow_ups() {
        let user = |text| format!("{{\"role\": \"user\", \"content\": \"{text}\"}}");
        let conversation = format!("{{\"messages\": [{}, {}]}}\n", user("one"), user("two"));
        let text = conversation + "{\"prompt\": \"alone\"}\n";
        let (_folder, path) = file("mine.jsonl", &text);
        let config = |turns| RunConfig {
            prompts: path.clone(),
            turns: Some(turns),
            input_len: 40,
            shared_prefix_tokens: Some(3),
            ..RunConfig::default()
        };
        for prompt in source(&config(2)).unwrap().prompts(2, 1) {
            let (prefix, opening) = prompt.turns[0].split_once("\n\n").unwrap();
            assert_eq!((words(prefix), prompt.turns.len()), (3, 2));
            if opening == "one" {
                assert_eq!(prompt.turns[1], "two");
            } else {
                assert_eq!((opening, words(&prompt.turns[1])), ("alone", 10));
            }
        }
        let error = source(&config(3)).unwrap_err();
        assert!(error.contains("line 1") && error.contains("2 messages of the user"), "{error}");
    }

    #[test]
    fn what_cannot_be_is_refused_by_the_name_of_the_flag() {
        let (_folder, path) = file("mine.jsonl", &numbered_prompts(1));
        let refused = |change: &dyn Fn(&mut RunConfig), flag: &str| {
            let mut config = RunConfig::default();
            change(&mut config);
            let error = source(&config).unwrap_err();
            assert!(error.starts_with(&format!("{flag}: ")), "{error}");
        };
        refused(&|config| config.prompts = "sinthetic".to_owned(), "--prompts");
        refused(&|config| config.input_len = 0, "--input-len");
        refused(&|config| config.turns = Some(0), "--turns");
        refused(&|config| config.shared_prefix_tokens = Some(256), "--shared-prefix-tokens");
        refused(&|config| config.trace_speed = Some(2.0), "--trace-speed");
        let with_trace = |config: &mut RunConfig| config.trace = Some(path.clone());
        refused(
            &|config| {
                with_trace(config);
                config.turns = Some(2);
            },
            "--turns",
        );
        refused(
            &|config| {
                with_trace(config);
                config.trace_scale = Some(-1.0);
            },
            "--trace-scale",
        );
        refused(
            &|config| {
                with_trace(config);
                config.trace_speed = Some(2.0);
            },
            "--trace",
        );
        refused(
            &|config| {
                config.prompts.clone_from(&path);
                config.input_dist = Some(LengthDist::Normal);
            },
            "--input-dist",
        );
    }
}
