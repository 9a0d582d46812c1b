//! One line for each look at the server, for logs and pipes.

use super::collector::Collector;
use super::state::{Status, TopState};
use super::view::figure_rows;
use crate::output;
use std::future::Future;
use std::time::Instant;

/// Prints lines until `end`, or until the user interrupts.
pub(super) async fn print(collector: Collector, end: impl Future<Output = ()>) {
    let mut state = TopState::new(collector.url());
    let mut observations = collector.start();
    let started = Instant::now();
    let mut last_header = String::new();
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(end, interrupt);
    loop {
        tokio::select! {
            () = &mut end => return,
            _ = &mut interrupt => return,
            observation = observations.recv() => {
                let Some(observation) = observation else {
                    return;
                };
                state.update(observation, started.elapsed().as_secs_f64());
                let header = super::view::header(&state);
                if header != last_header {
                    output::line(&header);
                    last_header = header;
                }
                output::line(line(&state));
            }
        }
    }
}

/// Returns the state in one line.
fn line(state: &TopState) -> String {
    let mut line = format!("{:>7.1} s", state.at);
    match &state.status {
        Status::Connecting => line.push_str("  connecting"),
        Status::Down(reason) | Status::NoMetrics(reason) => line.push_str(&format!("  {reason}")),
        Status::Live => {
            for (name, value) in figure_rows(state) {
                if value != super::view::UNKNOWN {
                    line.push_str(&format!("  {name} {value}"));
                }
            }
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::collector::Observation;
    use crate::top::state::tests::{metrics, up};

    #[test]
    fn a_line_has_what_is_known_and_nothing_else() {
        let mut state = TopState::new("http://h/v1");
        assert_eq!(line(&state), "    0.0 s  connecting");
        for (output, at) in [(100, 1.0), (150, 2.0)] {
            let answers = up("mini-infer", Ok(&metrics(output, 1.0, 10)));
            state.update(Observation::Up(Box::new(answers)), at);
        }
        assert_eq!(
            line(&state),
            "    2.0 s  running 2  waiting 1  output 50.0 tokens/s  prompt 100.0 tokens/s  \
             KV use 25.0 %  prefix hits 24.0 %  preemptions 0"
        );
        state.update(Observation::Down("http://h/v1: refused".to_owned()), 3.0);
        assert_eq!(line(&state), "    3.0 s  http://h/v1: refused");
    }
}
