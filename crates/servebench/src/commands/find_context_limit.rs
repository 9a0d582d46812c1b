//! `servebench find-context-limit`.

use crate::client::{Connections, Exchange, ExchangeClock, KeepAlive, Message, RequestSpec, send};
use crate::error::ServebenchError;
use crate::load::runtime;
use crate::output;
use crate::results::Endpoint;
use clap::Args;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// First words of prompts, another one for each length, so that no prompt is in the server's cache.
/// Each is one token of the usual vocabularies, as is the word that is repeated after it.
const FIRST_WORDS: [&str; 24] = [
    "time", "year", "people", "way", "day", "man", "thing", "life", "child", "world", "school",
    "state", "family", "group", "country", "problem", "hand", "part", "place", "case", "week",
    "company", "system", "program",
];
const REPEATED_WORD: &str = " test";

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct FindContextLimitArgs {
    /// Base URL of the API, such as http://127.0.0.1:8000/v1
    #[arg(long)]
    url: String,
    /// Name of the model, as the server knows it
    #[arg(long)]
    model: String,
    /// Shortest prompt to try, in words of about one token
    #[arg(long, value_name = "WORDS", default_value = "512")]
    start: NonZeroUsize,
    /// Longest prompt to try
    #[arg(long, value_name = "WORDS", default_value = "32768")]
    max: NonZeroUsize,
    /// Tokens of an output
    #[arg(long, value_name = "TOKENS", default_value = "16")]
    output_len: std::num::NonZeroU32,
    /// Longest wait for the next bytes
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    timeout: f64,
    /// Bearer token
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
}

/// Why a prompt did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LimitKind {
    /// The server says that it is too long.
    Refused,
    /// The server took it, but read only a part.
    Cut,
    /// The server failed, which mostly means that its memory did not suffice.
    Failed,
    /// No answer in time.
    Late,
    /// No connection.
    Unreachable,
}

impl LimitKind {
    /// Returns what the error of a request says about its length.
    fn of(error: &str) -> Self {
        let kind = error.split(':').next().unwrap_or_default();
        let text = error.to_lowercase();
        let says_context = ["context", "too long", "maximum length", "max_model_len"];
        match kind {
            "HTTP 400" | "HTTP 413" | "HTTP 422" => Self::Refused,
            "timeout" => Self::Late,
            "connect error" | "connection error" | "connection dropped mid-stream" => {
                Self::Unreachable
            }
            _ if says_context.iter().any(|words| text.contains(words)) => Self::Refused,
            _ => Self::Failed,
        }
    }

    fn meaning(&self) -> &'static str {
        match self {
            Self::Refused => "the server refuses longer prompts",
            Self::Cut => "the server silently cuts longer prompts",
            Self::Failed => "the server fails on longer prompts, perhaps for want of memory",
            Self::Late => "longer prompts take more than --timeout",
            Self::Unreachable => "the connection is lost on longer prompts; did the server end?",
        }
    }

    /// Tells whether the limit is sharp, and the server is still there to be asked for it.
    fn is_worth_a_search(&self) -> bool {
        match self {
            Self::Refused | Self::Cut | Self::Failed => true,
            Self::Late | Self::Unreachable => false,
        }
    }
}

/// A prompt that worked.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Accepted {
    num_words: usize,
    /// As the server counts; `None` if it does not tell.
    num_tokens: Option<u64>,
    /// Of those, found in the server's cache.
    num_cached: Option<u64>,
    ttft_ms: f64,
}

/// A prompt that did not.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refused {
    num_words: usize,
    kind: LimitKind,
    error: String,
}

struct Prober {
    spec: RequestSpec,
    connections: Connections,
    /// Begins the prompts.
    first_word: &'static str,
}

pub(crate) fn run(args: &FindContextLimitArgs) -> Result<ExitCode, ServebenchError> {
    let usage = |flag: &str, message: &str| ServebenchError::Usage {
        flag: flag.to_owned(),
        message: message.to_owned(),
    };
    if args.max < args.start {
        return Err(usage("--max", "must not be below --start"));
    }
    let timeout = Duration::try_from_secs_f64(args.timeout)
        .ok()
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| usage("--timeout", "must be above 0 and finite"))?;
    let spec = RequestSpec {
        url: args.url.clone(),
        model: args.model.clone(),
        endpoint: Endpoint::Chat,
        output_len: args.output_len.get(),
        ignore_eos: false,
        temperature: 0.0,
        api_key: args.api_key.clone(),
    };
    let connections = Connections::new(&spec, timeout, KeepAlive::Reuse)?;
    let mut prober = Prober { spec, connections, first_word: FIRST_WORDS[0] };
    output::line(format!("finding the longest prompt that {} takes ({})", args.url, args.model));
    let found = runtime(NonZeroUsize::MIN)?.block_on(find(args, &mut prober));
    print_result(args, &found)
}

/// Doubles, then halves the gap.
async fn find(
    args: &FindContextLimitArgs,
    prober: &mut Prober,
) -> (Option<Accepted>, Option<Refused>) {
    let mut longest = None;
    let mut num_words = args.start.get();
    let mut words = FIRST_WORDS.iter().cycle();
    let mut refused = loop {
        prober.first_word = words.next().unwrap_or(&FIRST_WORDS[0]);
        match prober.probe(num_words).await {
            Ok(accepted) if num_words >= args.max.get() => return (Some(accepted), None),
            Ok(accepted) => longest = Some(accepted),
            Err(refused) => break refused,
        }
        num_words = (num_words * 2).min(args.max.get());
    };
    // From here on prompts begin alike: what the server has cached makes the search short, and the
    // latencies up to here are without it.
    while let Some(accepted) = longest.filter(|_| refused.kind.is_worth_a_search()) {
        let middle = usize::midpoint(accepted.num_words, refused.num_words);
        if middle == accepted.num_words {
            break;
        }
        match prober.probe(middle).await {
            Ok(accepted) => longest = Some(accepted),
            // A server that has ended says nothing about lengths.
            Err(lost) if !lost.kind.is_worth_a_search() => {
                refused.kind = lost.kind;
                refused.error = lost.error;
            }
            Err(shorter) => refused = shorter,
        }
    }
    (longest, Some(refused))
}

impl Prober {
    async fn probe(&self, num_words: usize) -> Result<Accepted, Refused> {
        let prompt = format!("{}{}", self.first_word, REPEATED_WORD.repeat(num_words - 1));
        let body = self.spec.body(&[Message::user(prompt)], None);
        let clock = ExchangeClock::alone();
        let exchange = send(&self.connections, body, clock, &AtomicU64::new(0)).await;
        let judged = judge(num_words, &exchange);
        output::line(match &judged {
            Ok(accepted) => format!(
                "  {num_words:>8} words  ok, {}TTFT {:.0} ms{}",
                accepted.num_tokens.map_or(String::new(), |num| format!("{num} tokens, ")),
                accepted.ttft_ms,
                accepted.num_cached.map_or(String::new(), |num| format!(" ({num} from its cache)")),
            ),
            Err(refused) => format!("  {num_words:>8} words  failed: {}", refused.error),
        });
        judged
    }
}

fn judge(num_words: usize, exchange: &Exchange) -> Result<Accepted, Refused> {
    let result = &exchange.result;
    let num_tokens = result.prompt_tokens;
    let empty = result.error.as_deref().is_some_and(|error| error.starts_with("empty response"));
    // A model that has nothing to say about the prompt has still read it.
    if let Some(error) = result.error.as_ref().filter(|_| !empty) {
        let kind = LimitKind::of(error);
        return Err(Refused { num_words, kind, error: error.clone() });
    }
    // Words are at least one token each, so fewer tokens, allowing a tenth for odd vocabularies,
    // mean that the server did not read them all.
    if let Some(num) = num_tokens.filter(|num| *num * 10 < num_words as u64 * 9) {
        let error = format!("the server read only {num} tokens");
        return Err(Refused { num_words, kind: LimitKind::Cut, error });
    }
    let ttft_ms = result.ttft.unwrap_or_default() * 1e3;
    let num_cached = result.cached_tokens.filter(|num| *num > 0);
    Ok(Accepted { num_words, num_tokens, num_cached, ttft_ms })
}

fn print_result(
    args: &FindContextLimitArgs,
    found: &(Option<Accepted>, Option<Refused>),
) -> Result<ExitCode, ServebenchError> {
    let (longest, refused) = found;
    let Some(longest) = longest else {
        let error = refused.as_ref().map_or("no answer", |refused| refused.error.as_str());
        return Err(ServebenchError::Server {
            url: args.url.clone(),
            message: format!("even {} words fail: {error}; try a lower --start", args.start),
        });
    };
    let length = match longest.num_tokens {
        Some(num_tokens) => format!("{num_tokens} tokens"),
        None => format!("{} words of about one token", longest.num_words),
    };
    output::line("");
    match refused {
        None => output::line(format!(
            "Longest prompt tried: {length}, and it works. Try more with a higher --max."
        )),
        Some(refused) => {
            let gap = refused.num_words - longest.num_words;
            let exactness = if gap == 1 {
                "exactly; one word more does not work"
            } else {
                "at least; not searched further"
            };
            output::line(format!(
                "Longest prompt that works: {length} ({exactness}), with {} output tokens",
                args.output_len
            ));
            output::line(format!("Why: {}: {}", refused.kind.meaning(), refused.error));
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart_by_what_they_say_about_lengths() {
        for (error, kind) in [
            ("HTTP 400: this model's maximum context length is 2048", LimitKind::Refused),
            ("HTTP 413: too large", LimitKind::Refused),
            ("HTTP 500: exceeds the context size", LimitKind::Refused),
            ("stream error: prompt too long", LimitKind::Refused),
            ("HTTP 500: out of memory", LimitKind::Failed),
            ("HTTP 429: busy", LimitKind::Failed),
            ("timeout: no answer for 60 s", LimitKind::Late),
            ("connection dropped mid-stream: reset", LimitKind::Unreachable),
            ("connect error: refused", LimitKind::Unreachable),
        ] {
            assert_eq!(LimitKind::of(error), kind, "{error}");
        }
    }
}
