//! How many prompt tokens a step computes beside sequences that decode.
//!
//! A step's time is a gap in the stream of every sequence that decodes in it. So while some do,
//! prompts get what is left of a target after the time that the decodes alone take; where more
//! sequences wait for their first token than for their next one, a derived target gives way. Both
//! times are learnt from the steps themselves, as moving averages; nothing here changes an output,
//! only how soon it comes. Without decodes there is nobody to wait, and a prompt gets the whole
//! budget.
//!
//! Where only few tokens would fit, so few that reading weights and context for them is most of the
//! work, a chunk of more tokens passes a few layers in each step instead.

use std::ops::RangeInclusive;
use std::time::Duration;

/// What a step's time is kept within while sequences decode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetItl {
    /// Nothing: prompts get the whole budget.
    Off,
    /// 2.25 times what the decodes alone take, so that no gap of a stream is three times its median
    /// even when the estimate is a third too low. Where prompts outnumber the decodes, up to four
    /// times as much is added: a burst of requests would wait longer for their first tokens than
    /// the few that stream already gain.
    #[default]
    Derived,
    /// This time, as far as the decodes alone do not take longer.
    Within(Duration),
}

/// The least prompt tokens of a step that has any: prompts go on whatever the decodes take, once that
/// is known. Fewer would each cost far more, as a step reads the weights and the context of all its
/// tokens once.
const LEAST_TOKENS: u32 = 8;
/// Tokens from which on a chunk passes all layers at once, beside the decodes: then it is cheaper to
/// share the reading of weights with them.
const LEAST_AT_ONCE: u32 = 32;
/// The tokens of a chunk that passes a few layers at a time: at least a block's, and no more than
/// are computed much cheaper together than apart.
const LAYERED_TOKENS: RangeInclusive<u32> = 16..=256;
/// What one layer of such a chunk may take of the time that prompts get, in quarters, as a step
/// takes whole layers.
const LAYER_QUARTERS: u32 = 3;
/// Share of the newest step in an average: 1 / 4, so that an average follows a prompt whose
/// attention takes longer with every chunk.
const SMOOTHING: u32 = 4;
/// What prompts may add to the time of the decodes alone, in quarters of it.
const ADDED_QUARTERS: u32 = 5;
/// Times that they may add this where they outnumber the decodes.
const MAX_OUTNUMBERED: u32 = 4;
/// Numbers of decodes are told apart by their power of two.
const NUM_SIZES: usize = 33;

/// What steps took, and how many prompt tokens follow from it.
#[derive(Clone, Debug)]
pub(crate) struct ChunkLimit {
    target: TargetItl,
    /// Parts that a chunk can be cut into; 1 where it cannot.
    num_layers: u32,
    /// The time of a step without prompts, by the power of two of its decodes.
    decode_steps: [Option<DecodeStep>; NUM_SIZES],
    /// The time that one prompt token adds to a step with decodes.
    per_prompt_token: Option<Duration>,
}

/// Steps of about the same number of decodes.
#[derive(Clone, Copy, Debug)]
struct DecodeStep {
    num_decodes: u32,
    time: Duration,
}

/// How the prompts of a step go through the layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ChunkPass {
    /// In this step, together with the decodes.
    #[default]
    AtOnce,
    /// Some layers in this step, the next ones in those that follow.
    LayerByLayer,
}

/// What prompts get of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PromptShare {
    pub(crate) num_tokens: u32,
    pub(crate) pass: ChunkPass,
}

impl PromptShare {
    /// No tokens.
    pub(crate) const NONE: Self = Self { num_tokens: 0, pass: ChunkPass::AtOnce };
}

/// The sequences that want something of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Those that wait for their next token only.
    pub(crate) num_decodes: u32,
    /// Those with more tokens to compute, the waiting ones that would find a place included.
    pub(crate) num_prompts: u32,
}

/// The time that prompts get of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeLeft {
    /// As much as they want.
    Any,
    /// It is not known yet what decodes take.
    Unknown,
    /// So much.
    Within(Duration),
}

/// What was in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepShape {
    /// Sequences with one token.
    pub(crate) num_decodes: u32,
    /// Tokens of all others.
    pub(crate) num_prompt_tokens: u32,
}

impl ChunkLimit {
    /// Creates one that has seen no step, for an executor of so many layers.
    pub(crate) fn new(target: TargetItl, num_layers: usize) -> Self {
        let num_layers = u32::try_from(num_layers).unwrap_or(u32::MAX).max(1);
        Self { target, num_layers, decode_steps: [None; NUM_SIZES], per_prompt_token: None }
    }

    /// Takes a step into account.
    pub(crate) fn observe(&mut self, step: StepShape, elapsed: Duration) {
        let StepShape { num_decodes, num_prompt_tokens } = step;
        if num_decodes == 0 {
            if num_prompt_tokens >= LEAST_TOKENS && self.per_prompt_token.is_none() {
                // The best guess until a step has both.
                self.per_prompt_token = Some(elapsed / num_prompt_tokens);
            }
            return;
        }
        if num_prompt_tokens == 0 {
            let known = &mut self.decode_steps[size(num_decodes)];
            let time = average(known.map(|step| step.time), elapsed);
            *known = Some(DecodeStep { num_decodes, time });
        } else if let Some(decodes) = self.decode_time(num_decodes) {
            let newest = elapsed.saturating_sub(decodes) / num_prompt_tokens;
            self.per_prompt_token = Some(average(self.per_prompt_token, newest));
        }
    }

    /// Takes into account how long some layers of a chunk took.
    pub(crate) fn observe_layers(&mut self, num_tokens: u32, num_layers: usize, elapsed: Duration) {
        let num_layers = u32::try_from(num_layers).unwrap_or(u32::MAX).max(1);
        let share = f64::from(self.num_layers) / f64::from(num_layers);
        let newest = elapsed.mul_f64(share / f64::from(num_tokens.max(1)));
        self.per_prompt_token = Some(average(self.per_prompt_token, newest));
    }

    /// Returns what prompts get of the next step.
    pub(crate) fn share(&self, demand: Demand) -> PromptShare {
        let at_once = |num_tokens| PromptShare { num_tokens, pass: ChunkPass::AtOnce };
        let (left, per_token) = match (self.time_left(demand), self.per_prompt_token) {
            (TimeLeft::Any, _) => return at_once(u32::MAX),
            (TimeLeft::Within(left), Some(per_token)) => (left, per_token),
            (TimeLeft::Within(_), None) => return at_once(LEAST_TOKENS),
            // A step of the decodes alone tells; with prompts in each step nothing would, and a
            // burst of them would go on by the least there is.
            (TimeLeft::Unknown, _) => return PromptShare::NONE,
        };
        let tokens_in = |time: Duration| {
            let num_tokens = time.as_nanos().checked_div(per_token.as_nanos());
            u32::try_from(num_tokens.unwrap_or(u128::MAX)).unwrap_or(u32::MAX)
        };
        let num_tokens = tokens_in(left).max(LEAST_TOKENS);
        if num_tokens >= LEAST_AT_ONCE || self.num_layers == 1 {
            return at_once(num_tokens);
        }
        let of_a_layer = tokens_in(left.saturating_mul(self.num_layers) * LAYER_QUARTERS / 4);
        let (least, most) = LAYERED_TOKENS.into_inner();
        // Whole groups of rows, as kernels take them.
        let num_tokens = of_a_layer.clamp(least, most) / least * least;
        PromptShare { num_tokens, pass: ChunkPass::LayerByLayer }
    }

    /// Returns how many layers a chunk of `num_tokens` may pass in this step, at least 1.
    pub(crate) fn num_layers(&self, demand: Demand, num_tokens: u32) -> usize {
        let (left, per_token) = match (self.time_left(demand), self.per_prompt_token) {
            (TimeLeft::Any, _) => return usize::MAX,
            (TimeLeft::Within(left), Some(per_token)) => (left, per_token),
            (TimeLeft::Within(_) | TimeLeft::Unknown, _) => return 1,
        };
        let of_all = per_token.saturating_mul(num_tokens).as_nanos();
        let share = (left.as_nanos() * u128::from(self.num_layers)).checked_div(of_all);
        usize::try_from(share.unwrap_or(u128::MAX)).unwrap_or(usize::MAX).max(1)
    }

    fn time_left(&self, demand: Demand) -> TimeLeft {
        let Demand { num_decodes, num_prompts } = demand;
        if num_decodes == 0 || self.target == TargetItl::Off {
            return TimeLeft::Any;
        }
        let Some(decodes) = self.decode_time(num_decodes) else {
            return TimeLeft::Unknown;
        };
        TimeLeft::Within(match self.target {
            TargetItl::Off => return TimeLeft::Any,
            TargetItl::Derived => {
                let outnumbered = f64::from(num_prompts) / f64::from(num_decodes);
                let times = outnumbered.clamp(1.0, f64::from(MAX_OUTNUMBERED));
                (decodes * ADDED_QUARTERS / 4).mul_f64(times)
            }
            TargetItl::Within(target) => target.saturating_sub(decodes),
        })
    }

    /// Returns about how long a step of so many decodes takes: as those of its size took, else as
    /// the closest smaller ones with a prompt token's time for each decode more, else as larger
    /// ones.
    fn decode_time(&self, num_decodes: u32) -> Option<Duration> {
        let own = size(num_decodes);
        if let Some(step) = self.decode_steps[own] {
            return Some(step.time);
        }
        let smaller = self.decode_steps[..own].iter().rev().find_map(|step| *step);
        if let Some(step) = smaller {
            let more = num_decodes.saturating_sub(step.num_decodes);
            return Some(step.time + self.per_prompt_token.unwrap_or_default() * more);
        }
        self.decode_steps[own..].iter().find_map(|step| *step).map(|step| step.time)
    }
}

/// Returns the power of two at or above a number of decodes.
fn size(num_decodes: u32) -> usize {
    let power = u64::from(num_decodes).next_power_of_two().trailing_zeros();
    // At most 32.
    power as usize
}

fn average(known: Option<Duration>, newest: Duration) -> Duration {
    known.map_or(newest, |known| (known * (SMOOTHING - 1) + newest) / SMOOTHING)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// One whose chunks cannot be cut.
    fn limit_of(target: TargetItl) -> ChunkLimit {
        ChunkLimit::new(target, 1)
    }

    fn decodes(num_decodes: u32) -> StepShape {
        StepShape { num_decodes, num_prompt_tokens: 0 }
    }

    fn prompt(num_prompt_tokens: u32) -> StepShape {
        StepShape { num_decodes: 0, num_prompt_tokens }
    }

    /// One prompt beside so many decodes.
    fn beside(num_decodes: u32) -> Demand {
        Demand { num_decodes, num_prompts: 1 }
    }

    #[test]
    fn a_lone_prompt_and_a_target_that_is_off_have_no_limit() {
        let mut limit = limit_of(TargetItl::Off);
        limit.observe(decodes(1), 10 * MS);
        assert_eq!(limit.share(beside(1)).num_tokens, u32::MAX);
        assert_eq!(limit_of(TargetItl::Derived).share(beside(0)).num_tokens, u32::MAX);
    }

    #[test]
    fn prompts_get_what_decodes_leave_of_the_target() {
        let mut limit = limit_of(TargetItl::Within(50 * MS));
        assert_eq!(limit.share(beside(1)), PromptShare::NONE, "the decodes show their time first");
        limit.observe(prompt(400), 200 * MS);
        limit.observe(decodes(1), 10 * MS);
        assert_eq!(limit.share(beside(1)).num_tokens, 80);
        let mut derived = limit_of(TargetItl::Derived);
        derived.observe(prompt(400), 200 * MS);
        derived.observe(decodes(1), 20 * MS);
        assert_eq!(derived.share(beside(1)).num_tokens, 50);
    }

    #[test]
    fn a_derived_target_gives_way_to_prompts_that_outnumber_the_decodes() {
        let seen = |target| {
            let mut limit = limit_of(target);
            limit.observe(prompt(400), 200 * MS);
            limit.observe(decodes(2), 20 * MS);
            move |num_prompts| limit.share(Demand { num_decodes: 2, num_prompts }).num_tokens
        };
        assert_eq!([1, 2, 3, 8, 100].map(seen(TargetItl::Derived)), [50, 50, 75, 200, 200]);
        assert_eq!([1, 100].map(seen(TargetItl::Within(45 * MS))), [50, 50], "that is a promise");
    }

    #[test]
    fn prompts_go_on_when_decodes_alone_miss_the_target() {
        let mut limit = limit_of(TargetItl::Within(5 * MS));
        limit.observe(prompt(400), 200 * MS);
        limit.observe(decodes(1), 10 * MS);
        assert_eq!(limit.share(beside(1)).num_tokens, LEAST_TOKENS);
    }

    #[test]
    fn more_decodes_are_taken_to_need_more_time_until_they_are_seen() {
        let mut limit = limit_of(TargetItl::Within(50 * MS));
        limit.observe(prompt(400), 200 * MS);
        limit.observe(decodes(1), 10 * MS);
        // 10 ms and 20 more decodes of 0.5 ms leave 30 ms.
        assert_eq!(limit.share(beside(21)).num_tokens, 60);
        limit.observe(decodes(20), 40 * MS);
        assert_eq!(limit.share(beside(21)).num_tokens, 20);
        assert_eq!(limit.share(beside(1)).num_tokens, 80, "fewer are not affected");
    }

    #[test]
    fn mixed_steps_tell_what_a_prompt_token_adds() {
        let mut limit = limit_of(TargetItl::Within(50 * MS));
        limit.observe(prompt(400), 200 * MS);
        limit.observe(decodes(2), 10 * MS);
        for _ in 0..40 {
            let mixed = StepShape { num_decodes: 2, num_prompt_tokens: 20 };
            limit.observe(mixed, 50 * MS);
        }
        // 2 ms each, not the 0.5 ms of a lone prompt.
        let got = limit.share(beside(2)).num_tokens;
        assert!((19..=21).contains(&got), "{got}");
    }

    #[test]
    fn tokens_that_take_no_time_have_no_limit() {
        let mut limit = limit_of(TargetItl::Within(50 * MS));
        limit.observe(decodes(1), 10 * MS);
        limit.observe(StepShape { num_decodes: 1, num_prompt_tokens: 64 }, 10 * MS);
        assert_eq!(limit.share(beside(1)).num_tokens, u32::MAX);
    }

    #[test]
    fn every_number_of_decodes_has_a_size() {
        assert_eq!([1, 2, 3, 4, 5, u32::MAX].map(size), [0, 1, 2, 2, 3, 32]);
    }

    #[test]
    fn a_chunk_that_would_be_tiny_passes_layer_by_layer() {
        let mut limit = ChunkLimit::new(TargetItl::Within(20 * MS), 24);
        limit.observe(prompt(400), 200 * MS);
        limit.observe(decodes(4), 10 * MS);
        // 10 ms are 20 tokens in all layers; three quarters of them are 360 in one layer.
        let share = limit.share(beside(4));
        assert_eq!(share, PromptShare { num_tokens: 256, pass: ChunkPass::LayerByLayer });
        // 256 tokens take 5.33 ms in a layer.
        assert_eq!(limit.num_layers(beside(4), 256), 1);
        assert_eq!(limit.num_layers(beside(4), 64), 7);
        assert_eq!(limit.num_layers(beside(0), 256), usize::MAX, "nobody waits");
        // Attention to a long context: 8 ms in a layer of 256 tokens, 0.75 ms for a token in all.
        (0..40).for_each(|_| limit.observe_layers(256, 2, 16 * MS));
        assert_eq!(limit.share(beside(4)).num_tokens, 240);
        assert_eq!(limit.num_layers(beside(4), 64), 5);
        let mut at_once = ChunkLimit::new(TargetItl::Within(40 * MS), 24);
        at_once.observe(prompt(400), 200 * MS);
        at_once.observe(decodes(4), 10 * MS);
        assert_eq!(at_once.share(beside(4)).pass, ChunkPass::AtOnce, "60 tokens are enough");
    }
}
