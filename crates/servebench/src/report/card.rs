//! A result as a picture of 1200 × 630, the size that social sites preview.
//!
//! Left what was measured and its headline numbers, right throughput over load with the capacity
//! marked. A number that is not known is left out; a text that is too wide ends in `…`.

mod canvas;
mod curve;

use super::{caption, figures, number};
use crate::results::{CapacityReason, LevelResult, Mode, RunResult, Slo};
use canvas::{Canvas, Ink, Place};

/// Left and right edge of what is drawn, in pixels.
const MARGIN: f32 = 56.0;

/// Width of the column of numbers.
const NUMBERS_WIDTH: f32 = 370.0;

/// From one headline number to the next.
const NUMBER_PITCH: f32 = 94.0;

/// A number in large type, and what it is.
#[derive(Clone, Debug, PartialEq)]
struct Headline {
    number: String,
    meaning: String,
}

/// Returns the card of a run as a PNG file.
#[must_use]
pub fn png(run: &RunResult) -> Vec<u8> {
    let mut canvas = Canvas::new();
    let wide = canvas::WIDTH - 2.0 * MARGIN;
    canvas.text(Place { x: MARGIN, y: 90.0 }, &caption::engine(run), 46.0, Ink::Strong, wide);
    canvas.text(Place { x: MARGIN, y: 132.0 }, &run.config.model, 27.0, Ink::Strong, wide);
    if let Some(machine) = caption::machine(run) {
        canvas.text(Place { x: MARGIN, y: 166.0 }, &machine, 20.0, Ink::Soft, wide);
    }
    let mut y = 246.0;
    for headline in headlines(run) {
        canvas.text(Place { x: MARGIN, y }, &headline.number, 52.0, Ink::Accent, NUMBERS_WIDTH);
        let below = Place { x: MARGIN, y: y + 28.0 };
        canvas.text(below, &headline.meaning, 19.0, Ink::Soft, NUMBERS_WIDTH);
        y += NUMBER_PITCH;
    }
    let chart_left = MARGIN + NUMBERS_WIDTH + 26.0;
    curve::draw(&mut canvas, run, chart_left, canvas::WIDTH - MARGIN);
    canvas.text(Place { x: MARGIN, y: 602.0 }, &load_described(run), 17.0, Ink::Soft, wide);
    canvas.into_png()
}

/// Returns the numbers that are known, at most four, what matters most first.
fn headlines(run: &RunResult) -> Vec<Headline> {
    let headline = |number: String, meaning: &str| Headline { number, meaning: meaning.to_owned() };
    let capacity = run.capacity.as_ref().and_then(|capacity| {
        let load = capacity.capacity?;
        let at_least = if capacity.reason == CapacityReason::MaxReached { "≥ " } else { "" };
        let number = format!("{at_least}{}", number::exact(load));
        let unit = caption::load_unit(capacity.mode, load);
        Some((load, headline(number, &format!("{unit} within target"))))
    });
    let at = |load: f64| run.levels.iter().find(|level| level.value.0 == load && is_good(level));
    let throughput = |level: &LevelResult, meaning: &str| {
        headline(number::short(level.summary.output_throughput), meaning)
    };
    let peak = run
        .levels
        .iter()
        .filter(|level| is_good(level))
        .max_by(|a, b| a.summary.output_throughput.total_cmp(&b.summary.output_throughput));
    let mut headlines = Vec::new();
    match (&capacity, peak) {
        (Some((_, capacity)), _) => headlines.push(capacity.clone()),
        (None, Some(peak)) => {
            headlines.push(throughput(peak, &format!("output tokens/s at {}", load_name(peak))));
        }
        (None, None) => {}
    }
    if let Some(one) = at(1.0).filter(|level| level.mode == Mode::Concurrency) {
        if let Some(tpot) = one.summary.tpot.p50.filter(|tpot| *tpot > 0.0) {
            headlines.push(headline(number::short(1.0 / tpot), "tokens/s for one user"));
        }
        if let Some(ttft) = one.summary.ttft.p50 {
            headlines
                .push(headline(number::short(ttft * 1000.0), "ms to the first token, one user"));
        }
    }
    if let Some(level) = capacity.and_then(|(load, _)| at(load)) {
        headlines.push(throughput(level, "output tokens/s at capacity"));
    }
    headlines
}

fn is_good(level: &LevelResult) -> bool {
    level.summary.completed > 0
}

fn load_name(level: &LevelResult) -> String {
    let load = level.value.0;
    if load.is_infinite() {
        return "all requests at once".to_owned();
    }
    format!("{} {}", number::exact(load), caption::load_unit(level.mode, load))
}

/// Returns what measured and what the load was, in a line.
fn load_described(run: &RunResult) -> String {
    let config = &run.config;
    let version = &run.environment.servebench_version;
    let mut parts = vec![format!("servebench {version}").trim_end().to_owned()];
    parts.push(match &config.trace {
        Some(trace) => format!("trace {trace}"),
        None => format!(
            "{} prompts of {} tokens, {} tokens of output",
            config.prompts, config.input_len, config.output_len
        ),
    });
    if let Some(capacity) = &run.capacity {
        let slo = Slo { ttft_ms: capacity.slo_ttft_ms, tpot_ms: capacity.slo_tpot_ms };
        let share = figures::percent(capacity.target);
        parts.push(format!("target: {} for {share}", figures::slo_text(slo)));
    }
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::CapacityResult;
    use crate::statistics::sample_requests::{even_request, level_of, run_of};
    use tiny_skia::Pixmap;

    const SLO: Slo = Slo { ttft_ms: Some(500.0), tpot_ms: Some(50.0) };

    fn level(load: u32) -> LevelResult {
        let requests = (0..load as usize).map(|i| even_request(i, 0.0, 0.1, 0.02, 50)).collect();
        level_of(Mode::Concurrency, f64::from(load), requests, 1.1, SLO)
    }

    fn run() -> RunResult {
        run_of("label", [1, 2, 4, 8].into_iter().map(level).collect())
    }

    fn numbers(run: &RunResult) -> Vec<String> {
        headlines(run).into_iter().map(|headline| headline.number).collect()
    }

    #[test]
    fn capacity_leads_where_it_was_searched() {
        let mut run = run();
        assert_eq!(numbers(&run), ["364", "50.0", "100"]);
        run.capacity = Some(CapacityResult {
            mode: Mode::Concurrency,
            target: 0.9,
            slo_ttft_ms: Some(500.0),
            slo_tpot_ms: Some(50.0),
            capacity: Some(4.0),
            first_fail: Some(8.0),
            reason: CapacityReason::Converged,
        });
        assert_eq!(numbers(&run), ["4", "50.0", "100", "182"]);
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let mut run = run();
        run.levels.clear();
        assert_eq!(numbers(&run), [] as [String; 0]);
        let card = Pixmap::decode_png(&png(&run)).unwrap();
        assert_eq!((card.width(), card.height()), (1200, 630));
    }

    #[test]
    fn long_names_do_not_run_over_the_edge() {
        let mut run = run();
        for text in ["W".repeat(500), "organisation/model-name-".repeat(30), "模型".repeat(90)] {
            run.config.model = text.clone();
            run.label = text.clone();
            run.environment.cpu = Some(text);
            let card = Pixmap::decode_png(&png(&run)).unwrap();
            let paper = card.pixel(0, 0).unwrap();
            let right_edge = 1200 - 40..1200;
            let blank = right_edge.flat_map(|x| (0..630).map(move |y| (x, y)));
            for (x, y) in blank {
                assert_eq!(card.pixel(x, y).unwrap(), paper, "at {x}, {y}");
            }
        }
    }
}
