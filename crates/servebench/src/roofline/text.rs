//! The roofline as text: peaks, what they allow, the levels of a run, the plot.

use super::plot::{PlotSize, mark, plot, short};
use super::{Bound, LevelPoint, ModelSize, Peaks, analyse, most_tokens_per_s, ops_per_token};
use crate::results::RunResult;
use mini_infer_kernels::Limit;

/// Size of the plot: with its labels it fits 80 columns.
const PLOT: PlotSize = PlotSize { width: 66, height: 15 };
/// Streams for which the most is told without a run.
const STREAMS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Returns what a machine can do at most and what a model can do on it.
#[must_use]
pub fn limits_text(peaks: &Peaks, model: Option<&ModelSize>) -> String {
    let mut text = peaks_text(peaks);
    let Some(model) = model else {
        text.push_str("\nFor what a model can do here at most, pass --model or --model-file.\n");
        return text;
    };
    text.push_str(&model_text(model));
    let prefill = peaks.ops_per_s / ops_per_token(model);
    text.push_str(&format!(
        "\nAt most, when a step reads all weights once and nothing else:\n  prefill \
         {prefill:>10.0} tokens/s\n"
    ));
    for num_streams in STREAMS.map(f64::from) {
        let intensity = ops_per_token(model) / model.weight_bytes * num_streams;
        let (most, bound) =
            (most_tokens_per_s(peaks, model, num_streams), Bound::at(intensity, peaks));
        text.push_str(&format!(
            "  {num_streams:>3} stream{} {most:>8.1} tokens/s, limited by {}\n",
            if num_streams > 1.0 { "s" } else { " " },
            bound.name()
        ));
    }
    text.push_str(&format!("\n{}", plot(peaks, &[], PLOT)));
    text
}

/// Returns a run under the roof.
#[must_use]
pub fn run_text(run: &RunResult, peaks: &Peaks, model: &ModelSize) -> String {
    let points = analyse(run, peaks, model);
    let mut text = format!("Roofline of {}\n\n", run.label);
    text.push_str(&peaks_text(peaks));
    text.push_str(&model_text(model));
    text.push('\n');
    text.push_str(&table(&points, peaks));
    text.push_str(&format!("\n{}\n", plot(peaks, &points, PLOT)));
    text.push_str(
        "A step reads all weights once and gives each stream in it one token, so it takes one\n\
         TPOT, and tokens/s x TPOT streams are in it. KV, activations and what prefill reads are\n\
         not counted, so the true bandwidth is a little higher. MFU counts prompt tokens too.\n",
    );
    if points.iter().any(|point| point.prompt_throughput.is_none()) {
        text.push_str("Where the prompt tokens are unknown, MFU is that of the output alone.\n");
    }
    for warning in warnings(&points) {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}

fn peaks_text(peaks: &Peaks) -> String {
    let mut text = format!(
        "{}\n  {} B/s from memory, {} op/s ({})\n",
        peaks.device,
        short(peaks.bandwidth),
        short(peaks.ops_per_s),
        peaks.source
    );
    if let Some(limits) = &peaks.measured {
        let mut row = |name: &str, limit: Limit| {
            let [one, all] = [limit.one_thread, limit.all_threads].map(|rate| rate / 1e9);
            text.push_str(&format!("  {name:16} {one:>9.1} {all:>9.1}\n"));
        };
        let heading = format!("  {:16} {:>9} {:>9}\n", "10^9 per second", "1 thread", "all");
        row("bytes read", limits.read_bytes_per_s);
        for set in &limits.arithmetic {
            let name = set.isa.name();
            let limits =
                [("int8", set.int8_per_s), ("bf16", set.bf16_per_s), ("f32", Some(set.f32_per_s))];
            for (kind, limit) in limits {
                if let Some(limit) = limit {
                    row(&format!("{kind} ({name})"), limit);
                }
            }
        }
        let at = text.find("  bytes read").unwrap_or(text.len());
        text.insert_str(at, &heading);
    }
    for note in &peaks.notes {
        text.push_str(&format!("  note: {note}\n"));
    }
    text
}

fn model_text(model: &ModelSize) -> String {
    format!(
        "{}\n  {} parameters, {} B of weights, {:.1} bits a weight ({})\n",
        model.name,
        short(model.num_parameters),
        short(model.weight_bytes),
        model.bits_per_weight(),
        model.source
    )
}

fn table(points: &[LevelPoint], peaks: &Peaks) -> String {
    let mut text = format!(
        "  {:10} {:>9} {:>8} {:>8} {:>7} {:>7} {:>8} {:>9}  {}\n",
        "level", "tokens/s", "streams", "B/token", "op/B", "MBU", "MFU", "at most", "limit"
    );
    for (i, point) in points.iter().enumerate() {
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let start = format!("{} {:10} {:>9.1}", mark(i), point.label, point.output_throughput);
        let mfu = percent(point.mfu);
        let row = match point.decode {
            Some(decode) => format!(
                "{start} {:>8.1} {:>8} {:>7} {:>7} {mfu:>8} {:>9.1}  {}",
                decode.num_streams,
                short(decode.bytes_per_token),
                short(decode.intensity),
                percent(decode.mbu),
                decode.most_tokens_per_s,
                Bound::at(decode.intensity, peaks).name()
            ),
            None => {
                format!(
                    "{start} {:>8} {:>8} {:>7} {:>7} {mfu:>8} {:>9}  -",
                    "-", "-", "-", "-", "-"
                )
            }
        };
        text.push_str(&format!("{row}\n"));
    }
    text
}

/// Returns what cannot be, in sentences.
fn warnings(points: &[LevelPoint]) -> Vec<String> {
    let mut warnings = Vec::new();
    let labels = |is_wrong: fn(&LevelPoint) -> bool| {
        let wrong = points.iter().filter(|point| is_wrong(point));
        wrong.map(|point| point.label.as_str()).collect::<Vec<_>>().join(", ")
    };
    let above = labels(|point| point.decode.is_some_and(|decode| decode.mbu > 1.0));
    if !above.is_empty() {
        warnings.push(format!(
            "MBU is above 100 % at {above}, which cannot be, so an assumption is wrong: the \
             model's size, the peak bandwidth, weights that a cache holds, or steps that give a \
             stream several tokens (speculative decoding)"
        ));
    }
    let above = labels(|point| point.mfu > 1.0);
    if !above.is_empty() {
        warnings.push(format!(
            "MFU is above 100 % at {above}, which cannot be, so an assumption is wrong: the \
             number of parameters, the peak, or prompt tokens that were cached and not computed"
        ));
    }
    warnings
}
