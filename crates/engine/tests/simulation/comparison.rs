//! Compares what requests got with what they get alone.

use crate::beam_reference;
use crate::greedy_reference;
use crate::runner::Simulation;
use crate::scenario::Command;
use crate::solo_rows::SoloRows;
use crate::transcript::{PromptFindings, Transcript, Transcripts, record};
use mini_infer_core::{
    FinishReason, Pooling, PrefixCaching, PromptReport, Request, RequestId, SequenceId,
    SequenceUsage, TokenId,
};
use mini_infer_engine::KvAllocator;

/// Checks all requests of a run that has ended. Returns how many tokens were chosen from changed
/// logits and compared with the best of them.
pub(crate) fn compare_with_solo_runs(run: &Simulation<'_>) -> u64 {
    let mut num_checked = 0;
    for request in &run.accepted {
        let expected = match request.sampling.beam {
            Some(_) => found_alone(run, request),
            None => sampled_alone(run, request),
        };
        check_prompt_logprobs(run, request);
        for (sequence, expected) in &expected {
            compare(run, request, *sequence, expected);
            check_hits(run, request, *sequence);
            let tokens = &run.transcripts[sequence].tokens;
            num_checked += greedy_reference::check(run.scenario, request, tokens);
        }
    }
    num_checked as u64
}

fn sampled_alone(run: &Simulation<'_>, request: &Request) -> Transcripts {
    let mut engine = run.scenario.solo_engine();
    engine.submit(request.clone()).unwrap();
    let index = 0..request.sampling.n;
    let mut transcripts: Transcripts = index
        .map(|index| (SequenceId { request: request.id, index }, Transcript::default()))
        .collect();
    let mut events = Vec::new();
    while engine.has_work() {
        engine.step(&mut events);
    }
    record(&mut transcripts, &mut events);
    transcripts
}

fn found_alone(run: &Simulation<'_>, request: &Request) -> Transcripts {
    let found = beam_reference::search(run.scenario, request);
    assert_eq!(found.len(), request.sampling.n as usize);
    let id = |index| SequenceId { request: request.id, index };
    let transcript = |found: beam_reference::Found| Transcript {
        tokens: found.tokens,
        logprobs: found.logprobs,
        prompt: None,
        end: Some((found.reason, SequenceUsage::default())),
    };
    (0..).zip(found).map(|(index, found)| (id(index), transcript(found))).collect()
}

fn compare(run: &Simulation<'_>, request: &Request, sequence: SequenceId, alone: &Transcript) {
    let got = &run.transcripts[&sequence];
    let (reason, usage) = got.end.as_ref().expect("every sequence ends");
    let num_tokens = got.tokens.len();
    let expected_tokens = alone.tokens.get(..num_tokens);
    assert_eq!(Some(&got.tokens[..]), expected_tokens, "tokens of {sequence}");
    let expected_logprobs = alone.logprobs.get(..num_tokens);
    assert_eq!(Some(&got.logprobs[..]), expected_logprobs, "logprobs of {sequence}");
    let is_whole = matches!(reason, FinishReason::Stop | FinishReason::Length);
    let is_told = got.prompt.is_some() || is_whole || num_tokens > 0;
    assert!(!is_told || got.prompt == alone.prompt, "report on the prompt of {sequence}");
    if let Some(&length) = run.stopped.get(&sequence) {
        assert_eq!((reason, usage.num_output_tokens), (&FinishReason::Stop, length));
        return;
    }
    assert_eq!(usage.num_output_tokens as usize, num_tokens);
    assert_eq!(usage.num_prompt_tokens as usize, request.prompt.len());
    let is_complete = check_constraint(run, request.id, &got.tokens);
    let stop_tokens = &request.sampling.stop_token_ids;
    let stop = got.tokens.iter().position(|token| stop_tokens.contains(token));
    match reason {
        FinishReason::Stop if is_complete => {}
        FinishReason::Stop => assert_eq!(stop.map(|index| index + 1), Some(num_tokens)),
        FinishReason::Length => {
            let num_free = run.scenario.config.max_model_len - usage.num_prompt_tokens;
            let limit = request.sampling.max_tokens.min(num_free);
            assert_eq!((stop, usage.num_output_tokens), (None, limit));
            assert!(!is_complete, "a complete output is not cut");
        }
        FinishReason::Abort => assert!(aborts(run, request.id)),
        FinishReason::Error(_) => assert!(run.scenario.fault.is_some()),
    }
}

/// Checks that an output follows its constraint, if it has one, and tells whether it is complete.
fn check_constraint(run: &Simulation<'_>, id: RequestId, output: &[TokenId]) -> bool {
    let Some(constraint) = run.scenario.constraints.get(&id) else { return false };
    for (length, token) in output.iter().enumerate() {
        assert!(constraint.allowed(&output[..length]).contains(token), "{id}: {output:?}");
        assert!(!constraint.is_complete(&output[..length]), "{id} goes on after its end");
    }
    constraint.is_complete(output)
}

fn aborts(run: &Simulation<'_>, id: RequestId) -> bool {
    let mut commands = run.scenario.commands.values().flatten();
    commands.any(|command| matches!(command, Command::Abort(request) if *request == id))
}

/// Checks what was told about a prompt's tokens against what may follow each of its beginnings.
fn check_prompt_logprobs(run: &Simulation<'_>, request: &Request) {
    let sequence = SequenceId { request: request.id, index: 0 };
    let prompt = &request.prompt;
    let told = run.transcripts[&sequence].prompt.as_ref();
    let (Some(PromptFindings::Logprobs(told)), PromptReport::Logprobs { num_top }) =
        (told, request.report)
    else {
        return;
    };
    assert_eq!(told.len(), prompt.len() - 1);
    let mut rows = SoloRows::new(run.scenario, request);
    for (i, told) in told.iter().enumerate() {
        let likely = rows.logprobs_after(prompt[..=i].to_vec());
        let rank = likely.iter().position(|(token, _)| *token == prompt[i + 1]);
        let next = rank.map(|rank| (rank + 1, likely[rank].1));
        assert_eq!(Some((told.rank as usize, told.chosen)), next, "token {i} of {sequence}");
        assert_eq!(told.top, likely[..likely.len().min(num_top as usize)]);
    }
}

/// Checks that a sequence was given only what others of its namespace had computed.
fn check_hits(run: &Simulation<'_>, request: &Request, sequence: SequenceId) {
    let (_, usage) = run.transcripts[&sequence].end.as_ref().expect("every sequence ends");
    let num_hit_tokens = usage.num_hit_tokens as usize;
    if num_hit_tokens == 0 {
        return;
    }
    let config = &run.scenario.config;
    assert_eq!(config.prefix_caching, PrefixCaching::On);
    assert_eq!(config.allocator, KvAllocator::Paged);
    assert_eq!(request.prefix_caching, PrefixCaching::On);
    assert!(num_hit_tokens < request.prompt.len(), "the last token is computed");
    let has_all_rows = match request.report {
        PromptReport::Nothing | PromptReport::Embedding(Pooling::Last) => false,
        PromptReport::Logprobs { .. } | PromptReport::Embedding(Pooling::Mean) => true,
    };
    assert!(!has_all_rows || sequence.index > 0, "{sequence} hits what has no rows");
    let is_donor = |other: &&Request| {
        let may_share = other.id != request.id || sequence.index > 0;
        may_share
            && other.namespace == request.namespace
            && other.prefix_caching == PrefixCaching::On
    };
    let longest = run.accepted.iter().filter(is_donor).map(|donor| {
        let shared = common(&request.prompt, &donor.prompt);
        if shared < donor.prompt.len() {
            return shared;
        }
        // Beams that were given up leave their KV, and are not told.
        let rest = &request.prompt[shared..];
        let of_donor = run.transcripts.iter().filter(|(id, _)| id.request == donor.id);
        let outputs = of_donor.map(|(_, transcript)| common(rest, &transcript.tokens)).max();
        match donor.sampling.beam {
            Some(_) => request.prompt.len(),
            None => shared + outputs.unwrap_or(0),
        }
    });
    assert!(Some(num_hit_tokens) <= longest.max(), "{sequence} hits what nobody computed");
}

/// Returns how many tokens two sequences have in common from their start.
fn common(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
