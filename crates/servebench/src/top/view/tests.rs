use super::*;
use crate::gpu_sampler::DeviceReading;
use crate::top::collector::Observation;
use crate::top::state::tests::{metrics, up};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

/// Draws on a terminal of this size and returns its lines.
fn screen(state: &TopState, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    let content = terminal.backend().buffer().content();
    let rows = content.chunks(usize::from(width)).map(|row| {
        let row: String = row.iter().map(|place| place.symbol()).collect();
        row.trim_end().to_owned()
    });
    rows.collect()
}

/// A busy mini-infer server after two looks.
fn busy() -> TopState {
    let mut state = TopState::new("http://127.0.0.1:8000/v1");
    for (output, at) in [(100, 1.0), (150, 2.0)] {
        let mut answers = up("mini-infer", Ok(&metrics(output, f64::from(output) / 100.0, output)));
        answers.kv = Some(KvBlocks {
            counts: [2, 6, 4, 88],
            block_size: 16,
            num_sequences: 3,
            waste: 0.031,
            shared_tokens: 32,
        });
        state.update(Observation::Up(Box::new(answers)), at);
    }
    state
}

#[test]
fn a_wide_screen_has_history_and_figures_side_by_side_and_the_blocks_below() {
    let expected = [
        "mini-infer  0.1.0  SmolLM2-135M  http://127.0.0.1:8000/v1",
        "┌ output tokens/s 50.0 (highest 50.0) ─────────┐┌ means over 30 s ───────────────────┐",
        "│ █                                            ││running     2                       │",
        "│ █                                            ││waiting     1                       │",
        "│ █                                            ││output      50.0 tokens/s           │",
        "│ █                                            ││prompt      100.0 tokens/s          │",
        "│ █                                            ││TTFT        10 ms                   │",
        "│ █                                            ││ITL         -                       │",
        "│ █                                            ││KV use      25.0 %                  │",
        "│ █                                            ││prefix hits 24.0 %                  │",
        "│ █                                            ││preemptions 0                       │",
        "└──────────────────────────────────────────────┘└────────────────────────────────────┘",
        "┌ KV blocks: 100 of 16 tokens, 3 sequences, 3.1 % waste, 32 slots saved by sharing ──┐",
        "│# shared 2   █ active 6   ▒ cached 4   · free 88                                    │",
    ];
    let lines = screen(&busy(), 86, 20);
    assert_eq!(lines[..14], expected, "{lines:#?}");
    assert!(lines[14].starts_with("│##██████▒▒▒▒····"), "{lines:#?}");
    assert_eq!(lines[14..16].join("").matches('·').count(), 88);
    assert_eq!(lines[19], "q quit   p pause   left/right graph");
}

#[test]
fn a_narrow_screen_has_everything_below_each_other() {
    let lines = screen(&busy(), 40, 30);
    assert_eq!(lines[1], "┌ output tokens/s 50.0 (highest 50.0) ─┐");
    assert_eq!(lines[6], "┌ means over 30 s ─────────────────────┐");
    assert_eq!(lines[7], "│running     2                         │");
    assert!(lines[17].starts_with("┌ KV blocks: 100 of 16 tokens"), "{lines:#?}");
    assert!(lines[19].starts_with("│##██████▒▒▒▒····"), "{lines:#?}");
    assert!(lines.iter().all(|line| line.chars().count() <= 40));
}

#[test]
fn many_blocks_share_a_square_and_the_legend_says_how_many() {
    let mut state = busy();
    let kv = state.kv.as_mut().unwrap();
    kv.counts = [0, 1, 0, 11_649];
    let lines = screen(&state, 86, 20);
    assert!(lines[13].contains("one is 35 blocks"), "{lines:#?}");
    assert!(lines[14].starts_with("│█····"), "{lines:#?}");
}

#[test]
fn a_server_without_metrics_shows_the_reason_and_no_zeros() {
    let mut state = TopState::new("http://127.0.0.1:11434/v1");
    let reason = "no metrics here: Ollama shows none at /metrics";
    state.update(Observation::Up(Box::new(up("Ollama", Err(reason)))), 1.0);
    let text = screen(&state, 80, 10).join("\n");
    assert!(text.contains(reason) && !text.contains("running"), "{text}");
}

#[test]
fn a_server_that_is_away_is_tried_again_and_pausing_is_shown() {
    let mut state = TopState::new("http://127.0.0.1:8000/v1");
    assert!(screen(&state, 80, 10).join("\n").contains("connecting"));
    state.update(Observation::Down("http://127.0.0.1:8000/v1: refused".to_owned()), 1.0);
    state.is_paused = true;
    let lines = screen(&state, 80, 10);
    assert_eq!(lines[0], "http://127.0.0.1:8000/v1");
    assert!(lines[2].contains("refused") && lines[4].contains("trying again"), "{lines:#?}");
    assert!(lines[9].starts_with("paused"), "{lines:#?}");
}

#[test]
fn power_and_energy_are_shown_where_the_machine_tells_them() {
    let mut state = busy();
    state.device = Some(DeviceReading {
        device_name: "CPU package (RAPL)".to_owned(),
        power_w: Some(25.0),
        ..DeviceReading::default()
    });
    let text = screen(&state, 86, 20).join("\n");
    assert!(text.contains("power       25 W, CPU package (RAPL)"), "{text}");
    assert!(text.contains("energy      2.00 tokens/J"), "{text}");
    assert!(!text.contains("GPU"), "{text}");
}

#[test]
fn the_graph_shows_the_series_that_was_chosen() {
    let mut state = busy();
    state.turn_series(-1);
    assert!(screen(&state, 86, 20)[1].starts_with("┌ KV use in % 25.0 (highest 25.0)"));
}

#[test]
fn a_terminal_of_any_size_is_drawn_on() {
    let state = busy();
    for width in [1, 2, 3, 10, 79, 80, 300] {
        for height in [1, 2, 3, 12, 13, 14, 100] {
            assert_eq!(screen(&state, width, height).len(), usize::from(height));
        }
    }
}
