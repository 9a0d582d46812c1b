//! Penalises tokens that would continue a repetition (DRY).
//!
//! A token that followed an earlier occurrence of what now stands at the end would make the
//! repetition longer. Where the repetition has at least the allowed length, `multiplier * base ^
//! (length - allowed length)` is subtracted from the token's logit, for the longest repetition that
//! it continues. Repetitions are counted back to the last breaker only, and a token that is a
//! breaker itself is never penalised. The method is p-e-w's; the rules are those of llama.cpp
//! (2025), which follow text-generation-webui.
//!
//! Lengths are found with the Z algorithm over the tokens read backwards (Gusfield, 1997): O(last
//! tokens) for each row.

use mini_infer_core::{DryBreakers, DryParams, FixedHashMap, TokenId};

/// Room to work in.
#[derive(Debug, Default)]
pub(crate) struct DryRoom {
    lengths: Vec<u32>,
}

/// Returns the tokens that would continue a repetition at the end of `tokens`, and what is to be
/// subtracted from the logit of each.
pub(crate) fn penalties(
    params: &DryParams,
    tokens: &[TokenId],
    room: &mut DryRoom,
) -> FixedHashMap<TokenId, f32> {
    let first = tokens.len().saturating_sub(params.num_last_tokens as usize);
    let tokens = &tokens[first..];
    let longest = num_behind_breaker(&params.breakers, tokens);
    let mut lengths: FixedHashMap<TokenId, u32> = FixedHashMap::default();
    if longest < params.allowed_length {
        return FixedHashMap::default();
    }
    repeated_lengths(tokens, &mut room.lengths);
    let backwards = tokens.iter().rev().zip(room.lengths.iter().skip(1));
    for (&next, &length) in backwards {
        let length = length.min(longest);
        let is_penalised =
            length >= params.allowed_length && params.breakers.tokens.binary_search(&next).is_err();
        if is_penalised {
            let known = lengths.entry(next).or_default();
            *known = length.max(*known);
        }
    }
    let penalty = |length: u32| {
        let exponent = f64::from(length - params.allowed_length);
        let penalty = f64::from(params.multiplier) * f64::from(params.base).powf(exponent);
        #[expect(clippy::cast_possible_truncation, reason = "rounded, and limited before")]
        let penalty = penalty.min(MAX_PENALTY) as f32;
        penalty
    };
    lengths.into_iter().map(|(token, length)| (token, penalty(length))).collect()
}

/// Penalty that no logit outweighs, at any temperature.
const MAX_PENALTY: f64 = 1000.0;

/// Returns how many tokens stand behind the last breaker.
fn num_behind_breaker(breakers: &DryBreakers, tokens: &[TokenId]) -> u32 {
    let ends_breaker = |end: &usize| {
        let tokens = &tokens[..*end];
        let is_token = |token| breakers.tokens.binary_search(token).is_ok();
        tokens.last().is_some_and(is_token)
            || breakers.phrases.iter().any(|phrase| tokens.ends_with(phrase))
    };
    let end = (1..=tokens.len()).rev().find(ends_breaker).unwrap_or(0);
    count(tokens.len() - end)
}

/// For each token, from the last one back, writes how many tokens up to it equal those at the end.
fn repeated_lengths(tokens: &[TokenId], lengths: &mut Vec<u32>) {
    let num = tokens.len();
    let back = |i: usize| tokens[num - 1 - i];
    lengths.clear();
    lengths.resize(num, 0);
    // The stretch start..end, read backwards, equals the end of the tokens, and reaches furthest.
    let (mut start, mut end) = (0, 0);
    for i in 1..num {
        let known = if i < end { (lengths[i - start] as usize).min(end - i) } else { 0 };
        let more = (known..num - i).take_while(|&j| back(j) == back(i + j)).count();
        lengths[i] = count(known + more);
        if i + known + more > end {
            (start, end) = (i, i + known + more);
        }
    }
}

fn count(num: usize) -> u32 {
    u32::try_from(num).expect("a sequence is bounded by max_model_len")
}

#[cfg(test)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small made-up numbers"
)]
mod tests {
    use super::*;
    use crate::random::RandomStream;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn params() -> DryParams {
        DryParams {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 2,
            num_last_tokens: u32::MAX,
            breakers: Arc::default(),
        }
    }

    /// The same with two loops.
    fn oracle(params: &DryParams, tokens: &[TokenId]) -> BTreeMap<TokenId, u32> {
        let first = tokens.len().saturating_sub(params.num_last_tokens as usize);
        let tokens = &tokens[first..];
        let DryBreakers { tokens: single, phrases } = &*params.breakers;
        let breaks = |end: usize| {
            let tokens = &tokens[..end];
            let is_single = single.contains(&tokens[end - 1]);
            is_single || phrases.iter().any(|phrase| tokens.ends_with(phrase))
        };
        let mut lengths = BTreeMap::new();
        for next in 1..tokens.len() {
            let mut length = 0;
            while length < next
                && tokens[next - 1 - length] == tokens[tokens.len() - 1 - length]
                && !breaks(tokens.len() - length)
            {
                length += 1;
            }
            if length >= params.allowed_length as usize && !single.contains(&tokens[next]) {
                let known = lengths.entry(tokens[next]).or_insert(0);
                *known = (*known).max(u32::try_from(length).unwrap());
            }
        }
        lengths
    }

    fn check(params: &DryParams, tokens: &[TokenId]) {
        let got: BTreeMap<TokenId, f32> =
            penalties(params, tokens, &mut DryRoom::default()).into_iter().collect();
        let penalty = |length: u32| {
            let exponent = f64::from(length - params.allowed_length);
            let penalty = f64::from(params.multiplier) * f64::from(params.base).powf(exponent);
            penalty.min(MAX_PENALTY) as f32
        };
        let expected: BTreeMap<TokenId, f32> = oracle(params, tokens)
            .into_iter()
            .map(|(token, length)| (token, penalty(length)))
            .collect();
        assert_eq!(got, expected, "{params:?} after {tokens:?}");
    }

    #[test]
    fn the_next_token_of_a_repetition_costs_more_the_longer_it_is() {
        let room = &mut DryRoom::default();
        let cost = |tokens: &[TokenId], room: &mut DryRoom| {
            penalties(&params(), tokens, room).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(cost(&[1, 2, 3, 9, 2], room), []);
        assert_eq!(cost(&[1, 2, 3, 9, 1, 2], room), [(3, 0.8)]);
        assert_eq!(cost(&[5, 1, 2, 3, 9, 5, 1, 2], room), [(3, 1.4)]);
        assert_eq!(cost(&[], room), []);
    }

    #[test]
    fn no_repetition_goes_beyond_a_breaker() {
        let breakers = DryBreakers { tokens: vec![7], phrases: vec![vec![8, 4]] };
        let params = DryParams { breakers: Arc::new(breakers), ..params() };
        let lengths = |tokens: &[TokenId]| {
            penalties(&params, tokens, &mut DryRoom::default()).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[7, 1, 2, 3, 7, 1, 2]), [(3, 0.8)]);
        assert_eq!(lengths(&[1, 7, 2, 3, 1, 7, 2]), [], "one token behind the breaker");
        assert_eq!(lengths(&[8, 4, 2, 3, 8, 4, 2]), []);
        assert_eq!(lengths(&[1, 2, 7, 1, 2]), [], "a breaker itself costs nothing");
    }

    #[test]
    fn every_penalty_is_that_of_the_plain_loops() {
        let breakers = DryBreakers { tokens: vec![0], phrases: vec![vec![1, 2]] };
        let breakers = Arc::new(breakers);
        for num_different in [1, 2, 3, 5] {
            for seed in 0..60 {
                let stream = RandomStream::new(seed, num_different);
                let token = |i| (stream.uniform_at(i) * f64::from(num_different)) as TokenId;
                let tokens: Vec<TokenId> = (0..u32::try_from(seed).unwrap()).map(token).collect();
                check(&params(), &tokens);
                check(&DryParams { breakers: Arc::clone(&breakers), ..params() }, &tokens);
                let (allowed_length, num_last_tokens) = (1 + num_different, 20);
                check(&DryParams { allowed_length, num_last_tokens, ..params() }, &tokens);
            }
        }
    }
}
