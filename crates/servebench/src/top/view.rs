//! Draws the state: header, history, figures, KV blocks, keys.
//!
//! From [`WIDE`] columns on, history and figures stand side by side. What has no room is left out
//! from the bottom; a terminal of any size can be drawn on.

use super::kv_blocks::{BlockState, KvBlocks};
use super::state::{Status, TopState, WINDOW_S};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline, SparklineBar, Wrap};

/// Columns from which there is room for two boxes side by side.
const WIDE: u16 = 80;
/// Columns of the box of figures beside another.
const FIGURES_WIDTH: u16 = 38;
/// What stands for a figure that the server does not tell.
pub(super) const UNKNOWN: &str = "-";

const ACCENT: Style = Style::new().fg(Color::Cyan);
const QUIET: Style = Style::new().fg(Color::DarkGray);
const ALARM: Style = Style::new().fg(Color::Yellow);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, state: &TopState) {
    let [top, body, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(Line::styled(header(state), ACCENT)), top);
    match &state.status {
        Status::Live => draw_figures(frame, body, state),
        Status::Connecting => draw_message(frame, body, "connecting"),
        Status::NoMetrics(reason) => draw_message(frame, body, reason),
        Status::Down(reason) => draw_message(frame, body, &format!("{reason}\n\ntrying again")),
    }
    let paused = if state.is_paused { "paused   " } else { "" };
    let keys = Line::from(vec![
        Span::styled(paused, ALARM),
        Span::styled("q quit   p pause   left/right graph", QUIET),
    ]);
    frame.render_widget(Paragraph::new(keys), bottom);
}

/// Returns who is watched, in one line.
pub(super) fn header(state: &TopState) -> String {
    let Some(server) = &state.server else {
        return state.url.clone();
    };
    let version = server.version.as_deref().unwrap_or_default();
    let models = match server.models.as_slice() {
        [] => "no model".to_owned(),
        [model] => model.clone(),
        [model, others @ ..] => format!("{model} and {} more", others.len()),
    };
    let parts = [server.engine.as_str(), version, &models, &server.url];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("  ")
}

/// Returns the figures as names and values.
pub(super) fn figure_rows(state: &TopState) -> Vec<(&'static str, String)> {
    let figures = &state.figures;
    let text = |value: Option<f64>, format: fn(f64) -> String| {
        value.map_or_else(|| UNKNOWN.to_owned(), format)
    };
    let count = |value| format!("{value:.0}");
    let rate = |value| format!("{value:.1} tokens/s");
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut rows = vec![
        ("running", text(figures.running, count)),
        ("waiting", text(figures.waiting, count)),
        ("output", text(figures.output_rate, rate)),
        ("prompt", text(figures.prompt_rate, rate)),
        ("TTFT", text(figures.ttft_ms, |ms| format!("{ms:.0} ms"))),
        ("ITL", text(figures.itl_ms, |ms| format!("{ms:.1} ms"))),
        ("KV use", text(figures.kv_use, percent)),
        ("prefix hits", text(figures.hit_rate, percent)),
        ("preemptions", text(figures.preemptions, count)),
    ];
    if let Some(device) = &state.device {
        if let Some(use_percent) = device.gpu_util {
            rows.push(("GPU use", format!("{use_percent:.0} %")));
        }
        if let Some((used, total)) = device.vram_used_mb.zip(device.vram_total_mb) {
            rows.push(("GPU memory", format!("{used:.0} of {total:.0} MiB")));
        }
        if let Some(power) = device.power_w {
            rows.push(("power", format!("{power:.0} W, {}", device.device_name)));
            if let Some(output) = figures.output_rate.filter(|_| power > 0.0) {
                rows.push(("energy", format!("{:.2} tokens/J", output / power)));
            }
        }
    }
    rows
}

fn draw_message(frame: &mut Frame<'_>, area: Rect, message: &str) {
    let message = Paragraph::new(message).style(ALARM).wrap(Wrap { trim: true });
    frame.render_widget(message.block(Block::bordered()), area);
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, state: &TopState) {
    let rows = figure_rows(state);
    let rows_height = u16::try_from(rows.len()).unwrap_or(u16::MAX).saturating_add(2);
    let is_wide = area.width >= WIDE;
    let (upper, lower) = if is_wide {
        let [upper, lower] =
            Layout::vertical([Constraint::Length(rows_height), Constraint::Min(0)]).areas(area);
        let halves = [Constraint::Min(0), Constraint::Length(FIGURES_WIDTH)];
        (Layout::horizontal(halves).areas::<2>(upper), lower)
    } else {
        let heights = [Constraint::Length(5), Constraint::Length(rows_height), Constraint::Min(0)];
        let [history, figures, lower] = Layout::vertical(heights).areas(area);
        ([history, figures], lower)
    };
    draw_history(frame, upper[0], state);
    draw_rows(frame, upper[1], &rows);
    if let Some(kv) = &state.kv {
        draw_blocks(frame, lower, kv);
    }
}

fn draw_history(frame: &mut Frame<'_>, area: Rect, state: &TopState) {
    let block = Block::bordered();
    let columns = usize::from(block.inner(area).width);
    let skipped = state.history.len().saturating_sub(columns);
    let shown = state.history.iter().skip(skipped);
    let values: Vec<_> = shown.map(|figures| state.series.of(figures)).collect();
    let highest = values.iter().flatten().copied().fold(0.0, f64::max);
    let now = state.series.of(&state.figures);
    let now = now.map_or_else(|| UNKNOWN.to_owned(), |value| format!("{value:.1}"));
    let title = format!(" {} {now} (highest {highest:.1}) ", state.series.name());
    // Bars are whole numbers: a tenth of the unit is finer than any terminal.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "figures are positive, and beyond u64 a bar is full anyway"
    )]
    let bars = values.into_iter().map(|value| match value {
        Some(value) => SparklineBar::from((value * 10.0).round() as u64),
        None => SparklineBar::from(None),
    });
    let sparkline = Sparkline::default().data(bars.collect::<Vec<_>>()).style(ACCENT);
    frame.render_widget(sparkline.block(block.title(title)), area);
}

fn draw_rows(frame: &mut Frame<'_>, area: Rect, rows: &[(&str, String)]) {
    let lines = rows.iter().map(|(name, value)| {
        Line::from(vec![Span::raw(format!("{name:12}")), Span::styled(value, STRONG)])
    });
    let title = format!(" means over {WINDOW_S:.0} s ");
    let lines = Paragraph::new(lines.collect::<Vec<_>>());
    frame.render_widget(lines.block(Block::bordered().title(title)), area);
}

/// Returns how blocks of a state look: tellable without colour too.
const fn look(state: BlockState) -> (&'static str, Color) {
    match state {
        BlockState::Shared => ("#", Color::Magenta),
        BlockState::Active => ("█", Color::Green),
        BlockState::Cached => ("▒", Color::Blue),
        BlockState::Free => ("·", Color::DarkGray),
    }
}

fn draw_blocks(frame: &mut Frame<'_>, area: Rect, kv: &KvBlocks) {
    let block = Block::bordered().title(format!(
        " KV blocks: {} of {} tokens, {} sequences, {:.1} % waste, {} slots saved by sharing ",
        kv.total(),
        kv.block_size,
        kv.num_sequences,
        kv.waste * 100.0,
        kv.shared_tokens,
    ));
    let inner = block.inner(area);
    let num_squares = u64::from(inner.width) * u64::from(inner.height.saturating_sub(1));
    frame.render_widget(block, area);
    if num_squares == 0 {
        return;
    }
    let map = kv.map(num_squares);
    let mut legend = Vec::new();
    for (state, count) in BlockState::ALL.into_iter().zip(kv.counts) {
        let (symbol, color) = look(state);
        legend.push(Span::styled(symbol, Style::new().fg(color)));
        legend.push(Span::raw(format!(" {} {count}   ", state.name())));
    }
    if map.blocks_per_square > 1 {
        legend.push(Span::styled(format!("one is {} blocks", map.blocks_per_square), QUIET));
    }
    let rows = map.squares.chunks(usize::from(inner.width)).map(|row| {
        let squares = row.iter().map(|state| {
            let (symbol, color) = look(*state);
            Span::styled(symbol, Style::new().fg(color))
        });
        Line::from(squares.collect::<Vec<_>>())
    });
    let lines: Vec<_> = [Line::from(legend)].into_iter().chain(rows).collect();
    frame.render_widget(Paragraph::new(lines), inner);
}

#[cfg(test)]
mod tests;
