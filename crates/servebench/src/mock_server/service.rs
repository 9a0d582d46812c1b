//! Which requests are served, which wait, and what is due next.
//!
//! Knows no thread and no clock: the caller says what time it is. Invariants: at most `slots`
//! requests are served; whoever waits came later than whoever is served. A request that waited
//! begins when the one before it was due to end, not when that was noticed.

use super::config::MockConfig;
use super::lateness::Lateness;
use super::script::{MockRequest, Piece, Script};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// What the server did, and how late it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MockStats {
    /// Requests being served or waiting.
    pub active: usize,
    /// Those of them that wait.
    pub waiting: usize,
    /// Most requests that were served or waited at once.
    pub peak: usize,
    /// Requests that were accepted.
    pub total: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Words of the prompts that were accepted.
    pub prompt_tokens: u64,
    /// Tokens that were sent.
    pub output_tokens: u64,
    /// How late a piece was handed to its connection, in milliseconds, rounded up to 0.01: median.
    pub late_p50_ms: f64,
    /// The same, 99th percentile.
    pub late_p99_ms: f64,
    /// The same, longest.
    pub late_max_ms: f64,
    /// How late a connection took its piece to write it to the network, in milliseconds: median.
    pub write_late_p50_ms: f64,
    /// The same, 99th percentile.
    pub write_late_p99_ms: f64,
    /// The same, longest.
    pub write_late_max_ms: f64,
}

/// Why a request is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Prompt and output are longer than the context.
    ContextLength {
        /// The longest that there is.
        limit: u64,
    },
    /// Too many wait.
    QueueFull,
    /// One of those that are to fail.
    Chosen,
}

/// Number of a request.
pub(super) type RequestNumber = u64;

/// A request that was accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    /// The settings that it is served by.
    pub(super) config: Arc<MockConfig>,
    /// Its number, to end it early.
    pub(super) number: RequestNumber,
    /// Its answer. Ends with the last piece.
    pub(super) pieces: UnboundedReceiver<Piece>,
}

#[derive(Debug)]
struct Waiting {
    number: RequestNumber,
    request: MockRequest,
    config: Arc<MockConfig>,
    arrived: Instant,
    pieces: UnboundedSender<Piece>,
}

/// Serves requests.
#[derive(Debug)]
pub(super) struct Service {
    config: Arc<MockConfig>,
    random: StdRng,
    num_requests: RequestNumber,
    serving: HashMap<RequestNumber, (Script, UnboundedSender<Piece>)>,
    waiting: VecDeque<Waiting>,
    /// The next piece of each request that has one.
    due: BinaryHeap<Reverse<(Instant, RequestNumber)>>,
    stats: MockStats,
    lateness: Arc<Lateness>,
}

impl Service {
    pub(super) fn new(config: MockConfig, lateness: Arc<Lateness>) -> Self {
        Self {
            random: StdRng::seed_from_u64(config.seed),
            config: Arc::new(config),
            num_requests: 0,
            serving: HashMap::new(),
            waiting: VecDeque::new(),
            due: BinaryHeap::new(),
            stats: MockStats::default(),
            lateness,
        }
    }

    /// Changes all settings, for requests from here on. What is random begins anew.
    pub(super) fn set(&mut self, config: MockConfig, now: Instant) {
        self.random = StdRng::seed_from_u64(config.seed);
        self.config = Arc::new(config);
        // There may be more slots than before.
        self.begin_waiting(now);
    }

    /// Returns the settings.
    pub(super) fn config(&self) -> Arc<MockConfig> {
        Arc::clone(&self.config)
    }

    /// Returns the counts; how late pieces were is for the caller to add.
    pub(super) fn stats(&self) -> MockStats {
        let waiting = self.waiting.len();
        MockStats { active: self.num_active(), waiting, ..self.stats.clone() }
    }

    /// Forgets all counts; what runs goes on.
    pub(super) fn clear_stats(&mut self) {
        self.stats = MockStats { peak: self.num_active(), ..MockStats::default() };
    }

    /// Counts a connection.
    pub(super) fn add_connection(&mut self) {
        self.stats.connections += 1;
    }

    /// Takes a request that has arrived, or says why not.
    pub(super) fn accept(
        &mut self,
        request: MockRequest,
        arrived: Instant,
    ) -> Result<Accepted, Refusal> {
        if let Some(refusal) = self.refusal(&request) {
            self.stats.refused += 1;
            return Err(refusal);
        }
        self.num_requests += 1;
        self.stats.total += 1;
        self.stats.prompt_tokens += request.num_prompt_tokens;
        let (sender, pieces) = mpsc::unbounded_channel();
        let number = self.num_requests;
        let config = self.config();
        self.waiting.push_back(Waiting {
            number,
            request,
            config: Arc::clone(&config),
            arrived,
            pieces: sender,
        });
        self.begin_waiting(arrived);
        self.stats.peak = self.stats.peak.max(self.num_active());
        Ok(Accepted { config, number, pieces })
    }

    /// Ends a request whose client is gone; one that has ended already is fine.
    pub(super) fn abort(&mut self, number: RequestNumber, now: Instant) {
        self.waiting.retain(|waiting| waiting.number != number);
        if self.serving.remove(&number).is_some() {
            self.begin_waiting(now);
        }
    }

    /// Returns when the next piece is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// Hands out one piece that is due; tells whether there was one.
    pub(super) fn step(&mut self, now: Instant) -> bool {
        let Some(&Reverse((due, number))) = self.due.peek().filter(|next| next.0.0 <= now) else {
            return false;
        };
        self.due.pop();
        let Some((script, pieces)) = self.serving.get_mut(&number) else {
            // It was aborted.
            return true;
        };
        let piece = script.next_piece(due);
        self.stats.output_tokens += u64::from(piece.num_tokens);
        // A receiver that is gone is about to abort its request.
        let _ = pieces.send(piece);
        self.lateness.add(now.saturating_duration_since(due));
        if let Some(due) = script.next_due() {
            self.due.push(Reverse((due, number)));
        } else if script.is_over() {
            self.serving.remove(&number);
            self.begin_waiting(due);
        }
        true
    }

    fn num_active(&self) -> usize {
        self.serving.len() + self.waiting.len()
    }

    fn refusal(&mut self, request: &MockRequest) -> Option<Refusal> {
        let config = self.config();
        let num_tokens = request.num_prompt_tokens + u64::from(request.num_output_tokens);
        if let Some(limit) = config.context_limit.filter(|&limit| num_tokens > limit) {
            return Some(Refusal::ContextLength { limit });
        }
        if config.fail_rate > 0.0 && self.random.random::<f64>() < config.fail_rate {
            return Some(Refusal::Chosen);
        }
        let is_full = config.slots.is_some_and(|slots| self.serving.len() >= slots);
        let too_many = config.max_queue.is_some_and(|most| self.waiting.len() >= most);
        (is_full && too_many).then_some(Refusal::QueueFull)
    }

    /// Begins whoever is next in line, while there are slots; they were free from `free_since`.
    fn begin_waiting(&mut self, free_since: Instant) {
        while self.config.slots.is_none_or(|slots| self.serving.len() < slots) {
            let Some(next) = self.waiting.pop_front() else {
                return;
            };
            let begin = free_since.max(next.arrived);
            let active = self.serving.len() + 1;
            let random = StdRng::seed_from_u64(self.random.random());
            let mut script = Script::new(next.config, next.request, begin, active, random);
            if let Some(due) = script.next_due() {
                self.due.push(Reverse((due, next.number)));
            }
            self.serving.insert(next.number, (script, next.pieces));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::script::Content;
    use super::super::wire::Format;
    use super::*;
    use std::time::Duration;

    /// A service on a clock that stands still until it is moved.
    struct Bench {
        service: Service,
        start: Instant,
    }

    impl Bench {
        fn new(config: MockConfig) -> Self {
            let service = Service::new(config, Arc::new(Lateness::new()));
            Self { service, start: Instant::now() }
        }

        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        fn accept(&mut self, ms: u64, num_output_tokens: u32) -> Result<Accepted, Refusal> {
            let request = MockRequest {
                format: Format::Chat,
                num_prompt_tokens: 10,
                num_output_tokens,
                wants_usage: true,
            };
            let arrived = self.at(ms);
            self.service.accept(request, arrived)
        }

        /// Serves everything, and returns when the pieces of a request were due, in milliseconds.
        fn due_ms(&mut self, accepted: Accepted) -> Vec<u64> {
            while let Some(due) = self.service.next_due() {
                self.service.step(due);
            }
            let mut pieces = accepted.pieces;
            let mut due = Vec::new();
            while let Ok(piece) = pieces.try_recv() {
                due.push(piece.due.duration_since(self.start).as_secs_f64());
            }
            due.iter()
                .map(|due| Duration::from_secs_f64(*due).as_millis().try_into().unwrap())
                .collect()
        }
    }

    fn config() -> MockConfig {
        MockConfig { ttft_ms: 50.0, itl_ms: 10.0, ..MockConfig::default() }
    }

    #[test]
    fn pieces_are_due_at_the_times_that_are_set() {
        let mut bench = Bench::new(config());
        let accepted = bench.accept(7, 3).unwrap();
        assert_eq!(bench.due_ms(accepted), [57, 67, 77]);
        let mut bench =
            Bench::new(MockConfig { tokens_per_chunk: 3, prefill_ms_per_token: 2.0, ..config() });
        let accepted = bench.accept(0, 7).unwrap();
        assert_eq!(bench.due_ms(accepted), [70, 100, 130]);
        assert_eq!(bench.service.stats().output_tokens, 7);
    }

    #[test]
    fn who_begins_beside_others_is_slower_from_first_to_last() {
        let mut bench = Bench::new(MockConfig { slowdown: 0.5, ..config() });
        let first = bench.accept(0, 2).unwrap();
        let second = bench.accept(0, 2).unwrap();
        let third = bench.accept(0, 2).unwrap();
        assert_eq!(bench.due_ms(first), [50, 60]);
        assert_eq!(bench.due_ms(second), [75, 90]);
        assert_eq!(bench.due_ms(third), [100, 120]);
    }

    #[test]
    fn without_a_slot_requests_wait_in_the_order_of_their_arrival() {
        let mut bench = Bench::new(MockConfig { slots: Some(1), max_queue: Some(2), ..config() });
        let served: Vec<Accepted> = (0..3).map(|ms| bench.accept(ms, 2).unwrap()).collect();
        assert_eq!(bench.accept(3, 2).unwrap_err(), Refusal::QueueFull);
        let stats = bench.service.stats();
        assert_eq!((stats.active, stats.waiting, stats.peak, stats.refused), (3, 2, 3, 1));
        let due: Vec<Vec<u64>> = served.into_iter().map(|request| bench.due_ms(request)).collect();
        // Each begins exactly when the one before it ends.
        assert_eq!(due, [[50, 60], [110, 120], [170, 180]]);
        assert_eq!(bench.service.stats().active, 0);
    }

    #[test]
    fn a_request_that_is_aborted_frees_its_slot_and_its_place_in_line() {
        let slot = MockConfig { slots: Some(1), ..config() };
        let mut bench = Bench::new(MockConfig { stall_after: Some(0), ..slot.clone() });
        let stalled = bench.accept(0, 2).unwrap();
        bench.service.set(slot, bench.at(1));
        let waiting = bench.accept(2, 2).unwrap();
        let last = bench.accept(3, 2).unwrap();
        bench.service.abort(waiting.number, bench.at(4));
        assert_eq!(bench.service.stats().waiting, 1);
        bench.service.abort(stalled.number, bench.at(6));
        assert_eq!(bench.due_ms(last), [56, 66]);
    }

    #[test]
    fn what_does_not_fit_the_context_is_refused() {
        let mut bench = Bench::new(MockConfig { context_limit: Some(15), ..config() });
        assert!(bench.accept(0, 5).is_ok());
        assert_eq!(bench.accept(0, 6).unwrap_err(), Refusal::ContextLength { limit: 15 });
    }

    #[test]
    fn the_chosen_share_of_requests_fails_alike_for_equal_seeds() {
        let failures = |seed| -> Vec<bool> {
            let mut bench = Bench::new(MockConfig { fail_rate: 0.3, seed, ..config() });
            (0..200).map(|_| bench.accept(0, 1).is_err()).collect()
        };
        assert_eq!(failures(1), failures(1));
        assert_ne!(failures(1), failures(2));
        let num_failed = failures(1).iter().filter(|failed| **failed).count();
        assert!((40..80).contains(&num_failed), "{num_failed} of 200");
    }

    #[test]
    fn jitter_moves_pieces_both_ways_and_keeps_their_order() {
        let mut bench = Bench::new(MockConfig { jitter: 0.5, seed: 3, ..config() });
        let accepted = bench.accept(0, 500).unwrap();
        let due = bench.due_ms(accepted);
        assert!(due.is_sorted());
        let moved: Vec<i64> = (0..)
            .zip(&due)
            .map(|(number, due)| i64::try_from(*due).unwrap() - (50 + 10 * number))
            .collect();
        assert!(moved.iter().all(|moved| (-5..=5).contains(moved)));
        assert!(moved.iter().min() < Some(&-3) && moved.iter().max() > Some(&3));
    }

    #[test]
    fn an_answer_that_is_to_break_breaks_after_its_tokens() {
        let mut bench = Bench::new(MockConfig { drop_after: Some(2), ..config() });
        let mut accepted = bench.accept(0, 5).unwrap();
        while let Some(due) = bench.service.next_due() {
            bench.service.step(due);
        }
        let mut contents = Vec::new();
        while let Ok(piece) = accepted.pieces.try_recv() {
            contents.push(piece.content);
        }
        assert_eq!((contents.len(), contents.last()), (3, Some(&Content::Break)));
        assert_eq!(bench.service.stats().active, 0);
    }
}
