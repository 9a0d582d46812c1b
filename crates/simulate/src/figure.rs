//! The runs of several allocators as a figure, in SVG.
//!
//! Two bands of panels, with one line for each allocator: what the memory was used for, how many
//! requests ran, and prefix cache hits beside their bound; then preemptions, the queueing delay and
//! goodput. A bar is the mean; a dark mark is the peak, the 99th percentile or the bound.

use crate::SimulateError;
use crate::report::Report;
use crate::run::AllocatorReport;
use plotters::coord::Shift;
use plotters::prelude::{
    BLACK, Color, DrawingArea, IntoDrawingArea, IntoFont, PathElement, RGBColor, Rectangle,
    SVGBackend, Text, TextStyle, WHITE,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Uses of memory in the order of the bars, with colours that the colour-blind can tell apart.
const USES: [(&str, RGBColor); 4] = [
    ("live tokens", RGBColor(0, 114, 178)),
    ("reserved", RGBColor(86, 180, 233)),
    ("internal", RGBColor(240, 200, 80)),
    ("external", RGBColor(213, 94, 0)),
];

/// Colour of the bars of one value.
const BAR: RGBColor = RGBColor(110, 130, 150);
/// Colour of the marks on them.
const MARK: RGBColor = RGBColor(20, 30, 40);
/// Colour of lines and text that explain.
const FAINT: RGBColor = RGBColor(110, 110, 110);

/// Sizes in pixels.
const WIDTH: i32 = 1200;
const HEADING_HEIGHT: i32 = 84;
const TITLE_HEIGHT: i32 = 34;
const ROW_HEIGHT: i32 = 26;
const BAND_GAP: i32 = 26;
const BAR_HEIGHT: i32 = 16;
const FONT_SIZE: i32 = 13;

/// Left edges and widths of the names and the three panels of a band.
const NAMES_X: i32 = 16;
const PANELS: [(i32, i32); 3] = [(160, 420), (610, 250), (900, 250)];

/// Width of a share in numbers, written into the first bar.
const LABEL_WIDTH: i32 = 50;

/// Room for the number behind a bar.
const NUMBER_WIDTH: i32 = 96;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One bar with its mark.
struct Bar {
    value: f64,
    mark: Option<f64>,
    number: String,
}

impl Report {
    /// Returns the report as an SVG figure.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub fn to_svg(&self) -> Result<String, SimulateError> {
        let mut svg = String::new();
        let band_height = TITLE_HEIGHT + ROW_HEIGHT * pixels(self.allocators.len() as f64);
        let height = HEADING_HEIGHT + 2 * band_height + 2 * BAND_GAP;
        let size = (WIDTH.unsigned_abs(), height.unsigned_abs());
        {
            let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            area.fill(&WHITE).map_err(plot_error)?;
            let figure = Figure { report: self, area: &area };
            figure.heading()?;
            figure.upper_band(HEADING_HEIGHT)?;
            figure.lower_band(HEADING_HEIGHT + band_height + BAND_GAP)?;
            area.present().map_err(plot_error)?;
        }
        Ok(svg)
    }
}

/// A figure that is being drawn.
struct Figure<'a, 'b> {
    report: &'a Report,
    area: &'a Area<'b>,
}

impl Figure<'_, '_> {
    fn heading(&self) -> Result<(), SimulateError> {
        let Report { trace, settings, .. } = self.report;
        let title = format!("KV memory of {} tokens, {}", settings.kv_tokens, trace.name);
        self.text_of_size(title, (NAMES_X, 22), &BLACK, 18)?;
        let load = format!(
            "{} requests, {:.0} prompt and {:.0} output tokens in the mean; {}; steps of at least \
             {} ms",
            trace.num_requests,
            trace.mean_prompt_tokens,
            trace.mean_output_tokens,
            settings.load,
            settings.step_floor_ms
        );
        self.text(load, (NAMES_X, 46), &FAINT)?;
        let mut x = PANELS[0].0;
        for (name, color) in USES {
            self.rectangle((x, 64), (x + 12, 76), &color)?;
            self.text(name, (x + 18, 70), &BLACK)?;
            x += 110;
        }
        Ok(())
    }

    fn upper_band(&self, top: i32) -> Result<(), SimulateError> {
        self.names(top)?;
        self.shares(PANELS[0], top)?;
        self.panel(PANELS[1], top, "running requests: mean, peak", |run| Bar {
            value: run.mean_running,
            mark: Some(f64::from(run.peak_running)),
            number: format!("{:.1}, {}", run.mean_running, run.peak_running),
        })?;
        self.panel(PANELS[2], top, "prefix cache hits: rate, bound", |run| Bar {
            value: run.hit_rate,
            mark: Some(run.hit_rate_bound),
            number: format!("{:.1} of {:.1} %", run.hit_rate * 100.0, run.hit_rate_bound * 100.0),
        })
    }

    fn lower_band(&self, top: i32) -> Result<(), SimulateError> {
        let settings = &self.report.settings;
        let (ttft, tpot) = (settings.ttft_limit_s, settings.tpot_limit_s);
        self.names(top)?;
        let title = format!("goodput (first token within {ttft} s, later ones {tpot} s each)");
        self.panel(PANELS[0], top, &title, |run| Bar {
            value: run.goodput,
            mark: None,
            number: format!("{:.2}/s", run.goodput),
        })?;
        self.panel(PANELS[1], top, "queueing delay: mean, p99", |run| {
            let Some(delay) = run.queueing_delay_s else {
                return Bar { value: 0.0, mark: None, number: "saturated".to_owned() };
            };
            let number = format!("{:.2}, {:.2} s", delay.mean, delay.p99);
            Bar { value: delay.mean, mark: Some(delay.p99), number }
        })?;
        self.panel(PANELS[2], top, "preemptions", |run| Bar {
            value: run.preemptions as f64,
            mark: None,
            number: run.preemptions.to_string(),
        })
    }

    fn names(&self, top: i32) -> Result<(), SimulateError> {
        for (run, y) in self.report.allocators.iter().zip(rows(top)) {
            self.text(run.name.as_str(), (NAMES_X, y), &BLACK)?;
        }
        Ok(())
    }

    /// Draws what the memory was used for as bars that add up to the whole.
    fn shares(&self, (left, width): (i32, i32), top: i32) -> Result<(), SimulateError> {
        let title = "KV memory in use or asked for: live share in numbers";
        self.text(title, (left, top + TITLE_HEIGHT / 2), &FAINT)?;
        for (run, y) in self.report.allocators.iter().zip(rows(top)) {
            let waste = run.memory.waste;
            let shares = [run.memory.live_share, waste.reserved, waste.internal, waste.external];
            let mut start = 0.0;
            for ((_, color), share) in USES.iter().zip(shares) {
                let end = start + share;
                let x = |at: f64| left + pixels(at * f64::from(width));
                self.bar((x(start), x(end)), y, color)?;
                start = end;
            }
            let number = format!("{:.1} %", run.memory.live_share * 100.0);
            let fits = run.memory.live_share * f64::from(width) > f64::from(LABEL_WIDTH);
            self.text(number, (left + 6, y), if fits { &WHITE } else { &BLACK })?;
        }
        Ok(())
    }

    /// Draws one bar for each allocator, to the scale of the largest value or mark.
    fn panel(
        &self,
        (left, width): (i32, i32),
        top: i32,
        title: &str,
        bar: impl Fn(&AllocatorReport) -> Bar,
    ) -> Result<(), SimulateError> {
        self.text(title, (left, top + TITLE_HEIGHT / 2), &FAINT)?;
        let bars: Vec<Bar> = self.report.allocators.iter().map(bar).collect();
        let extents = bars.iter().map(|bar| bar.value.max(bar.mark.unwrap_or(0.0)));
        let largest = extents.fold(f64::MIN_POSITIVE, f64::max);
        let x = |value: f64| left + pixels(value / largest * f64::from(width - NUMBER_WIDTH));
        for (bar, y) in bars.iter().zip(rows(top)) {
            self.bar((left, x(bar.value)), y, &BAR)?;
            let mut end = x(bar.value);
            if let Some(mark) = bar.mark {
                let (x, half) = (x(mark), BAR_HEIGHT / 2 + 2);
                self.rectangle((x - 1, y - half), (x + 1, y + half), &MARK)?;
                end = end.max(x);
            }
            self.text(bar.number.as_str(), (end + 6, y), &BLACK)?;
        }
        let bottom = top + TITLE_HEIGHT + ROW_HEIGHT * pixels(bars.len() as f64);
        let axis = PathElement::new(vec![(left, top + TITLE_HEIGHT), (left, bottom)], FAINT);
        self.area.draw(&axis).map_err(plot_error)
    }

    fn bar(&self, (from, to): (i32, i32), y: i32, color: &RGBColor) -> Result<(), SimulateError> {
        if from == to {
            return Ok(());
        }
        self.rectangle((from, y - BAR_HEIGHT / 2), (to, y + BAR_HEIGHT / 2), color)
    }

    fn rectangle(
        &self,
        from: (i32, i32),
        to: (i32, i32),
        color: &RGBColor,
    ) -> Result<(), SimulateError> {
        self.area.draw(&Rectangle::new([from, to], color.filled())).map_err(plot_error)
    }

    fn text(
        &self,
        text: impl Into<String>,
        at: (i32, i32),
        color: &RGBColor,
    ) -> Result<(), SimulateError> {
        self.text_of_size(text, at, color, FONT_SIZE)
    }

    /// Draws text whose left end is in the middle of its height at `at`.
    fn text_of_size(
        &self,
        text: impl Into<String>,
        at: (i32, i32),
        color: &RGBColor,
        size: i32,
    ) -> Result<(), SimulateError> {
        let style = TextStyle::from(("sans-serif", size).into_font()).color(color);
        let style = style.pos(Pos::new(HPos::Left, VPos::Center));
        self.area.draw(&Text::new(text.into(), at, style)).map_err(plot_error)
    }
}

/// Returns the middles of the lines of a band.
fn rows(top: i32) -> impl Iterator<Item = i32> {
    (0..).map(move |row| top + TITLE_HEIGHT + ROW_HEIGHT * row + ROW_HEIGHT / 2)
}

/// Rounds to whole pixels.
#[expect(clippy::cast_possible_truncation, reason = "a conversion to i32 that saturates")]
fn pixels(length: f64) -> i32 {
    length.round() as i32
}

fn plot_error(error: impl std::fmt::Display) -> SimulateError {
    SimulateError::Plot { message: error.to_string() }
}
